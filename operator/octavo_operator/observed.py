"""What the cluster has for one service: raw objects read into small values. Pure: no client, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from octavo_operator import names
from octavo_operator.causes import UNSCHEDULABLE, Cause, job_cause, pod_cause, unexplained, workload_cause
from octavo_operator.names import Kind

Told = Mapping[str, Sequence[dict[str, Any]]]
NOTHING_TOLD: Told = {}


class Ownership(Enum):
    """Whose an object of a child's name is."""

    ABSENT = "absent"
    OURS = "ours"
    LEFTOVER = "leftover"  # of a deleted service of the same name: the garbage collector will take it
    FOREIGN = "foreign"


@dataclass(frozen=True)
class Pod:
    """One engine pod, or a pod of a Job.

    Attributes:
        unexplained: only Events tell what it waits for, and no change of the pod will announce them.
        crowded_out: no node takes it, and only because others hold the room that it needs.
        fetching: `octavo fetch` runs in it and can be asked for its progress.
    """

    name: str
    ip: str = ""
    ready: bool = False
    terminating: bool = False
    finished: bool = False
    cause: Cause | None = None
    deletion_cost: str | None = None
    unexplained: bool = False
    crowded_out: bool = False
    fetching: bool = False

    @property
    def starting(self) -> bool:
        """Counts as capacity that is on its way."""
        return not (self.ready or self.terminating or self.finished)

    @property
    def unschedulable(self) -> bool:
        """No node takes it."""
        return self.starting and self.cause is not None and self.cause.reason in UNSCHEDULABLE


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


@dataclass(frozen=True)
class Workload:
    """The Deployment's own account of its pods.

    Attributes:
        revision: the revision its template was made from; None when it does not say.
        arrived: all replicas have had the template and served; a mere change of scale leaves that so.
        in_place: an old pod stops before a new one starts.
    """

    desired: int
    replicas: int
    ready: int
    updated: int
    current: bool
    cause: Cause | None = None
    revision: str | None = None
    arrived: bool = False
    in_place: bool = False

    @property
    def rolling(self) -> bool:
        """A new revision is still being rolled out (a mere change of scale is not a rollout)."""
        return not self.current or self.updated < self.replicas


@dataclass(frozen=True)
class Observed:
    """Everything a decision about one service looks at.

    Attributes:
        children: by kind, those of which there is one.
        jobs: those that are ours.
        workload: the Deployment, if it is ours.
    """

    resource: dict[str, Any]
    children: Mapping[Kind, dict[str, Any] | None] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    workload: Workload | None = None
    monitoring_available: bool = False
    jobs: tuple[Job, ...] = ()

    @property
    def rolling(self) -> bool:
        """A rollout is under way."""
        return self.workload is not None and self.workload.rolling

    @property
    def unexplained(self) -> tuple[Pod | Job, ...]:
        """What waits for something that only Events tell, so that no change of a watched object will announce it."""
        podless = [job for job in self.jobs if job.outcome is Outcome.RUNNING and not job.pods]
        return (*podless, *(pod for pod in self._everywhere if pod.unexplained))

    @property
    def fetching(self) -> tuple[Pod, ...]:
        """Pods, of replicas and of Jobs, in which a model is being fetched."""
        return tuple(pod for pod in self._everywhere if pod.fetching and pod.ip)

    @property
    def _everywhere(self) -> tuple[Pod, ...]:
        return (*self.pods, *(pod for job in self.jobs for pod in job.pods))

    def job(self, purpose: Purpose, revision: str) -> Job | None:
        """The Job of a revision."""
        return next((job for job in self.jobs if (job.purpose, job.revision) == (purpose, revision)), None)


def ownership(live: dict[str, Any] | None, parent: dict[str, Any]) -> Ownership:
    """Whose `live` is, by its controller reference alone: labels and names prove nothing."""
    if live is None:
        return Ownership.ABSENT
    for owner in live["metadata"].get("ownerReferences", ()):
        if (
            owner.get("controller")
            and owner["kind"] == names.KIND
            and owner["apiVersion"].startswith(f"{names.GROUP}/")
        ):
            if owner["uid"] == parent["metadata"]["uid"]:
                return Ownership.OURS
            return Ownership.LEFTOVER if owner["name"] == parent["metadata"]["name"] else Ownership.FOREIGN
    return Ownership.FOREIGN


def read_workload(live: dict[str, Any]) -> Workload:
    """Reads a Deployment."""
    status = live.get("status", {})
    conditions = {item["type"]: item.get("reason") for item in status.get("conditions") or ()}
    return Workload(
        desired=live["spec"].get("replicas", 1),
        replicas=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        current=status.get("observedGeneration", 0) >= live["metadata"].get("generation", 1),
        cause=workload_cause(live),
        revision=live["metadata"].get("annotations", {}).get(names.REVISION),
        arrived=conditions.get("Progressing") == "NewReplicaSetAvailable",
        in_place=live["spec"].get("strategy", {}).get("rollingUpdate", {}).get("maxSurge") in (0, "0", "0%"),
    )


def read_pod(live: dict[str, Any], events: Sequence[dict[str, Any]] = ()) -> Pod:
    """Reads a pod.

    Args:
        events: core/v1 Events about it, for what its status does not tell.
    """
    meta, status = live["metadata"], live.get("status", {})
    conditions = {item["type"]: item for item in status.get("conditions", ())}
    ready = conditions.get("Ready", {}).get("status") == "True"
    return Pod(
        name=meta["name"],
        ip=status.get("podIP", ""),
        ready=ready and "deletionTimestamp" not in meta,
        terminating="deletionTimestamp" in meta,
        finished=status.get("phase") in ("Failed", "Succeeded"),
        cause=None if ready else pod_cause(live, events),
        unexplained=unexplained(live),
        deletion_cost=meta.get("annotations", {}).get(names.DELETION_COST),
        crowded_out=_crowded_out(conditions.get("PodScheduled", {})),
        fetching=_fetching(status),
    )


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


def _crowded_out(scheduled: dict[str, Any]) -> bool:
    """Whether some node would have the room if it were free.

    The scheduler says both in words only: a node that lacks a resource that others hold is one where it looked for
    victims; where the pod asks for more than there is, or may not run at all, it does not.
    """
    words = scheduled.get("message", "")
    return scheduled.get("status") == "False" and "Insufficient " in words and "No preemption victims found" in words


def _fetching(status: dict[str, Any]) -> bool:
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return any(item["name"] == names.LOADER and "running" in item.get("state", {}) for item in containers)
