"""What the cluster has for one service: raw objects read into small values. Pure: no client, no clock.

`Cause` is the heart of it: why a pod is not ready, in one word a person can act on and the cluster's own words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from octavo_operator import names
from octavo_operator.names import Kind
from octavo_operator.spec import ACCELERATOR


class Ownership(Enum):
    """Whose an object of a child's name is."""

    ABSENT = "absent"
    OURS = "ours"
    LEFTOVER = "leftover"  # of a deleted service of the same name: the garbage collector will take it
    FOREIGN = "foreign"


@dataclass(frozen=True)
class Cause:
    """Why something is not as it should be.

    Attributes:
        final: waiting does not help, a person must change something.
    """

    reason: str
    message: str
    final: bool


@dataclass(frozen=True)
class Pod:
    """One engine pod."""

    name: str
    ip: str = ""
    ready: bool = False
    terminating: bool = False
    finished: bool = False
    cause: Cause | None = None
    deletion_cost: str | None = None

    @property
    def starting(self) -> bool:
        """Counts as capacity that is on its way."""
        return not (self.ready or self.terminating or self.finished)

    @property
    def unschedulable(self) -> bool:
        """No node takes it."""
        return self.starting and self.cause is not None and self.cause.reason in UNSCHEDULABLE


@dataclass(frozen=True)
class Workload:
    """The Deployment's own account of its pods."""

    desired: int
    replicas: int
    ready: int
    updated: int
    current: bool
    cause: Cause | None = None

    @property
    def rolling(self) -> bool:
        """A new revision is still being rolled out (a mere change of scale is not a rollout)."""
        return not self.current or self.updated < self.replicas


@dataclass(frozen=True)
class Observed:
    """Everything a decision about one service looks at."""

    resource: dict[str, Any]
    children: Mapping[Kind, dict[str, Any] | None] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    workload: Workload | None = None
    monitoring_available: bool = False

    @property
    def rolling(self) -> bool:
        """A rollout is under way."""
        return self.workload is not None and self.workload.rolling


UNSCHEDULABLE = frozenset({"Unschedulable", "InsufficientAccelerator", "PvcNotFound", "PvcPending"})
_IMAGE_REASONS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
)

ENGINE_REASONS = (
    *("InvalidConfiguration", "ModelNotFound", "ModelUnsupported", "CheckpointInvalid"),
    "InsufficientMemory",
)
"""First word of the termination message of an engine that cannot start. Log lines look alike: only these count."""

_ENGINE_REASON = re.compile(rf"^({'|'.join(ENGINE_REASONS)}): (.{{1,800}})", re.MULTILINE)


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
    conditions = {item["type"]: item for item in status.get("conditions", ())}
    cause = None
    if (refused := conditions.get("ReplicaFailure", {})).get("status") == "True":
        cause = Cause("PodsRefused", f"the API server refuses the pods: {refused.get('message', '')}", final=True)
    elif conditions.get("Progressing", {}).get("reason") == "ProgressDeadlineExceeded":
        cause = Cause("StartupTimeout", "the new replica did not serve within startupSeconds; see its log", final=True)
    return Workload(
        desired=live["spec"].get("replicas", 1),
        replicas=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        current=status.get("observedGeneration", 0) >= live["metadata"].get("generation", 1),
        cause=cause,
    )


def read_pod(live: dict[str, Any]) -> Pod:
    """Reads a pod."""
    meta, status = live["metadata"], live.get("status", {})
    conditions = {item["type"]: item for item in status.get("conditions", ())}
    ready = conditions.get("Ready", {}).get("status") == "True"
    return Pod(
        name=meta["name"],
        ip=status.get("podIP", ""),
        ready=ready and "deletionTimestamp" not in meta,
        terminating="deletionTimestamp" in meta,
        finished=status.get("phase") in ("Failed", "Succeeded"),
        cause=None if ready else _pod_cause(status, conditions),
        deletion_cost=meta.get("annotations", {}).get(names.DELETION_COST),
    )


def _pod_cause(status: dict[str, Any], conditions: dict[str, dict[str, Any]]) -> Cause | None:
    if status.get("phase") == "Failed" and status.get("reason"):
        return Cause(status["reason"], status.get("message", "the pod failed"), final=False)
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return _scheduling_cause(scheduled.get("message", ""))
    for container in status.get("containerStatuses", ()):
        if cause := _container_cause(container):
            return cause
    return None


def _scheduling_cause(words: str) -> Cause:
    """The scheduler's words with the word for what is missing."""
    if "persistentvolumeclaim" in words and "not found" in words:
        return Cause("PvcNotFound", f"create the claim that model.source names: {words}", final=True)
    if "unbound immediate PersistentVolumeClaims" in words:
        return Cause("PvcPending", f"the model's claim has no volume yet: {words}", final=False)
    if f"Insufficient {ACCELERATOR}" in words:
        return Cause("InsufficientAccelerator", f"no node has a free accelerator: {words}", final=False)
    return Cause("Unschedulable", f"no node takes the pod: {words}", final=False)


def _container_cause(container: dict[str, Any]) -> Cause | None:
    waiting = container.get("state", {}).get("waiting", {})
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _IMAGE_REASONS:
        return Cause("ImagePullFailed", f"image {container.get('image', '')}: {message or reason}", final=True)
    if reason == "CreateContainerConfigError":
        return Cause("ConfigurationMissing", f"something the pod refers to is not there: {message}", final=True)
    if reason in ("CreateContainerError", "RunContainerError"):
        return Cause("ContainerStartFailed", message or reason, final=True)
    ended = container.get("state", {}).get("terminated") or container.get("lastState", {}).get("terminated")
    return _exit_cause(ended, container.get("restartCount", 0)) if ended else None


def _exit_cause(ended: dict[str, Any], restarts: int) -> Cause | None:
    """Why the engine's last run ended: its own words where it left any."""
    if ended.get("reason") == "OOMKilled":
        return Cause("ContainerOOMKilled", "the engine used more than its memory limit: raise resources.limits.memory "
                     "or lower engine.kvCacheMemoryBytes", final=True)  # fmt: skip
    if ended.get("exitCode") == 0:
        return None
    message = ended.get("message", "").strip()
    if found := _ENGINE_REASON.search(message):
        return Cause(found[1], found[2], final=True)
    tail = message[-400:] or "it left no message; see its log"
    return Cause(
        "CrashLoop", f"the engine exited with {ended.get('exitCode')} ({restarts} restarts): {tail}", final=True
    )
