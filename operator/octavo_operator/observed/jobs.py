"""Jobs of a service: what each is for, how far it is, what its program said. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from octavo_operator import names
from octavo_operator.causes import Cause, job_cause, pod_cause
from octavo_operator.observed.ownership import Ownership, ownership
from octavo_operator.observed.pods import Pod, read_pod

Told = Mapping[str, Sequence[dict[str, Any]]]
NOTHING_TOLD: Told = {}


class Purpose(Enum):
    """What a Job is for; part of its name."""

    PREFLIGHT = "preflight"
    LOADER = "load"


class Outcome(Enum):
    """How far a Job is."""

    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    GOING = "going"  # under deletion: its name is not free yet


@dataclass(frozen=True)
class Job:
    """One Job of a service.

    Attributes:
        revision: of the spec it was made for.
        report: what its program left as its last words; empty while it runs and when its pod is gone.
        cause: why it does not get on, or failed.
    """

    name: str
    uid: str
    purpose: Purpose
    revision: str
    outcome: Outcome
    report: str = ""
    cause: Cause | None = None
    pods: tuple[Pod, ...] = ()


def read_jobs(
    lives: Iterable[dict[str, Any]], pods: Iterable[dict[str, Any]], parent: dict[str, Any], told: Told = NOTHING_TOLD
) -> tuple[Job, ...]:
    """Reads the service's own Jobs, in the order of their names.

    Args:
        pods: of all Jobs of the service.
        told: core/v1 Events about Jobs and pods, by uid.
    """
    made = list(pods)
    ours = [live for live in lives if ownership(live, parent) is Ownership.OURS]
    jobs = [_read_job(live, [pod for pod in made if _belongs(pod, live["metadata"]["uid"])], told) for live in ours]
    return tuple(sorted((job for job in jobs if job), key=lambda job: job.name))


def _read_job(live: dict[str, Any], pods: list[dict[str, Any]], told: Told) -> Job | None:
    meta, labels = live["metadata"], live["metadata"].get("labels", {})
    purpose = next((item for item in Purpose if item.value == labels.get(names.PURPOSE_LABEL)), None)
    if purpose is None:
        return None  # not made by this operator's kind of plan: its owner reference takes care of it
    pods.sort(key=lambda pod: pod["metadata"].get("creationTimestamp", ""))
    outcome = _outcome(live)
    causes = [pod_cause(pod, told.get(pod["metadata"].get("uid", ""), ())) for pod in pods]
    return Job(
        name=meta["name"],
        uid=meta["uid"],
        purpose=purpose,
        revision=labels.get(names.REVISION, ""),
        outcome=outcome,
        report=next((words for pod in reversed(pods) if (words := _last_words(pod))), ""),
        cause=None if outcome is Outcome.PASSED else job_cause(live, causes, told.get(meta["uid"], ())),
        pods=tuple(read_pod(pod, told.get(pod["metadata"].get("uid", ""), ())) for pod in pods),
    )


def _outcome(live: dict[str, Any]) -> Outcome:
    if "deletionTimestamp" in live["metadata"]:
        return Outcome.GOING
    conditions = {item["type"]: item.get("status") for item in live.get("status", {}).get("conditions") or ()}
    if conditions.get("Complete") == "True":
        return Outcome.PASSED
    # FailureTarget comes first: the Job has failed, its pods are being ended.
    return Outcome.FAILED if "True" in (conditions.get("Failed"), conditions.get("FailureTarget")) else Outcome.RUNNING


def _belongs(pod: dict[str, Any], uid: str) -> bool:
    return any(owner.get("controller") and owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", ()))


def _last_words(pod: dict[str, Any]) -> str:
    """The termination message of the program that ended well."""
    for container in pod.get("status", {}).get("containerStatuses") or ():
        ended = container.get("state", {}).get("terminated", {})
        if ended.get("exitCode") == 0:
            return str(ended.get("message", "")).strip()
    return ""
