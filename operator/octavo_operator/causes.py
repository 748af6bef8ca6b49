"""Why a replica is not as it should be: one word a person can act on, and the cluster's own words. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from octavo_operator.spec import ACCELERATOR


@dataclass(frozen=True)
class Cause:
    """Why something is not as it should be.

    Attributes:
        final: waiting does not help, a person must change something.
    """

    reason: str
    message: str
    final: bool


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


def workload_cause(live: dict[str, Any]) -> Cause | None:
    """Why a Deployment makes no progress, in its own account."""
    conditions = {item["type"]: item for item in live.get("status", {}).get("conditions", ())}
    if (refused := conditions.get("ReplicaFailure", {})).get("status") == "True":
        return Cause("PodsRefused", f"the API server refuses the pods: {refused.get('message', '')}", final=True)
    if conditions.get("Progressing", {}).get("reason") == "ProgressDeadlineExceeded":
        return Cause("StartupTimeout", "the new replica did not serve within startupSeconds; see its log", final=True)
    return None


def pod_cause(live: dict[str, Any]) -> Cause | None:
    """Why a pod that is not ready is not; None while nothing is known to be wrong."""
    status = live.get("status", {})
    conditions = {item["type"]: item for item in status.get("conditions", ())}
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
