"""What to do about one service: rendered children against live ones. Pure; each step says why in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

from octavo_operator import names
from octavo_operator.causes import Cause
from octavo_operator.drift import drift
from octavo_operator.manifests import DEPLOYMENT, JOB, NETWORK_POLICY, SERVICE_ACCOUNT, Manifest
from octavo_operator.names import Kind
from octavo_operator.observed import Observed, Outcome, Ownership, ownership

VICTIM_COST = "-1"


@dataclass(frozen=True)
class Apply:
    """Send a manifest by server-side apply.

    Attributes:
        uid: of the live object it replaces fields of, so that another one of the same name is not hit; None to create.
        version: of that object as it was looked at.
        drifted: path of the field that someone else changed, where that is the reason.
    """

    manifest: Manifest
    reason: str
    uid: str | None = None
    drifted: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class Create:
    """Make an object that is never changed afterwards; one of the same name that is there already is a conflict."""

    manifest: Manifest
    reason: str


@dataclass(frozen=True)
class Delete:
    """Remove an object that is ours and no longer wanted, unless another has taken its name meanwhile."""

    kind: Kind
    name: str
    uid: str
    reason: str


@dataclass(frozen=True)
class MarkVictim:
    """Annotate the pod that the Deployment controller shall remove first."""

    pod: str
    reason: str


Step = Apply | Create | Delete | MarkVictim


@dataclass(frozen=True)
class Plan:
    """Steps in order, and what stands in the way of others."""

    steps: tuple[Step, ...] = ()
    blocked: tuple[Cause, ...] = ()

    @property
    def stages(self) -> list[list[Step]]:
        """The steps in groups, one after another; within a group none needs another, so they go at the same time."""
        stages = sorted({_stage(step) for step in self.steps})
        return [[step for step in self.steps if _stage(step) is stage] for stage in stages]

    @property
    def urgent(self) -> Plan:
        """The steps without which there are no pods; a later look finds the others."""
        return replace(self, steps=tuple(step for step in self.steps if _stage(step) <= Stage.PODS))


class Stage(IntEnum):
    """When a step's turn is."""

    BEFORE_PODS = 0  # what a Deployment's controller and pods look at when it is changed
    PODS = 1
    BESIDE_PODS = 2  # what can wait while more urgent things are to be done
    LAST = 3  # what is given up


def _stage(step: Step) -> Stage:
    if isinstance(step, Delete):
        return Stage.LAST
    if isinstance(step, MarkVictim) or step.manifest["kind"] in _BEFORE_PODS:
        return Stage.BEFORE_PODS
    return Stage.PODS if step.manifest["kind"] in _PODS else Stage.BESIDE_PODS


_BEFORE_PODS = frozenset({SERVICE_ACCOUNT[1], NETWORK_POLICY[1]})
_PODS = frozenset({DEPLOYMENT[1], JOB[1]})


def make_plan(observed: Observed, children: list[Manifest], victim: str | None, paused: bool) -> Plan:
    """Compares what should be with what is.

    Args:
        children: rendered manifests, sealed.
        victim: least busy pod when the replica count is being lowered.
        paused: nothing is changed while true.
    """
    if paused:
        return Plan()
    steps: list[Step] = []
    blocked: list[Cause] = []
    for manifest in children:
        step = _job(observed, manifest) if manifest["kind"] == JOB[1] else _child(observed, manifest)
        if isinstance(step, Cause):
            blocked.append(step)
        elif step is not None:
            steps.append(step)
    steps += _unwanted_jobs(observed, children)
    marked = {pod.name for pod in observed.pods if pod.deletion_cost == VICTIM_COST}
    if victim and victim not in marked:
        # Before the count is lowered: the controller chooses at that moment.
        steps.insert(0, MarkVictim(victim, "it is the least busy replica and one is to go"))
    return Plan(tuple(steps), tuple(blocked))


def _child(observed: Observed, manifest: Manifest) -> Apply | Cause | None:
    kind: Kind = (manifest["apiVersion"], manifest["kind"])
    live = observed.children.get(kind)
    name = f"{manifest['kind']} {manifest['metadata']['name']}"
    match ownership(live, observed.resource):
        case Ownership.ABSENT:
            return Apply(manifest, f"{name} does not exist")
        case Ownership.FOREIGN:
            return Cause("ForeignObject", f"{name} exists and belongs to someone else: delete or rename it, or rename "
                         "this InferenceService; Octavo does not adopt it", final=True)  # fmt: skip
        case Ownership.LEFTOVER:
            return Cause(
                "WaitingForCleanup", f"{name} of a deleted InferenceService is still being removed", final=False
            )
    assert live is not None
    if "deletionTimestamp" in live["metadata"]:
        return Cause("WaitingForCleanup", f"{name} is being deleted and will be made anew", final=False)
    uid, version = live["metadata"]["uid"], live["metadata"].get("resourceVersion")
    if _seal(live) != _seal(manifest):
        return Apply(manifest, f"{name}: the wanted state changed", uid, version=version)
    path = drift(manifest, live)
    return Apply(manifest, f"{name}: {path} was changed by someone else", uid, path, version) if path else None


def _seal(manifest: Mapping[str, Any]) -> str | None:
    """It also tells that we set fewer fields than before, which no comparison of fields would."""
    seal: str | None = manifest["metadata"].get("annotations", {}).get(names.RENDERED_ANNOTATION)
    return seal


def _job(observed: Observed, manifest: Manifest) -> Create | None:
    """A Job's template cannot change, and need not: its name has the revision."""
    name = manifest["metadata"]["name"]
    there = any(job.name == name for job in observed.jobs)
    return None if there else Create(manifest, f"Job {name} does not exist")


def _unwanted_jobs(observed: Observed, children: list[Manifest]) -> list[Delete]:
    wanted = {manifest["metadata"]["name"] for manifest in children if manifest["kind"] == JOB[1]}
    return [
        Delete(JOB, job.name, job.uid, f"Job {job.name} ({job.outcome.value}) is not needed any more")
        for job in observed.jobs
        if job.name not in wanted and job.outcome is not Outcome.GOING
    ]
