"""Why one pod is not ready, from its status and, where that is silent, from the Events about it."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_operator.causes.cause import Cause, Object, cleaned, conditions_of
from octavo_operator.causes.containers import container_cause, killed
from octavo_operator.causes.pod_events import event_cause
from octavo_operator.causes.scheduling import scheduling_cause

_CREATING = frozenset({"ContainerCreating", "PodInitializing"})

_FAILED = {
    "Evicted": "the node ran short and evicted the replica; another takes its place. If it repeats, set requests for "
    "what it uses, or use spec.cache instead of the node's disk",
    "Preempted": "a pod of higher priority took the place: raise template.priorityClassName or add a node",
    "Preempting": "a pod of higher priority took the place: raise template.priorityClassName or add a node",
    "Terminated": "the node shut down; another replica takes the place",
    "NodeShutdown": "the node shut down; another replica takes the place",
    "NodeLost": "the node does not answer; another replica takes the place",
    "NodeAffinity": "the node's labels changed and no longer fit template.nodeSelector or template.affinity",
    "DeadlineExceeded": "it ran longer than it may: see its log for what it waited for",
}
_OVER_ITS_LIMIT = (
    "the replica wrote more than it may and was evicted; another takes its place: raise "
    "resources.limits.ephemeral-storage or the volume's sizeLimit, or use spec.cache instead of the node's disk"
)
_NODE_REFUSED = "the node refused the replica after it was assigned; another takes its place"


def pod_cause(live: Object, events: Sequence[Object] = ()) -> Cause | None:
    """Why a pod that is not ready is not; None while nothing is known to be wrong.

    Args:
        events: core/v1 Events about the pod, in any order; only looked at where its status says nothing.
    """
    return cleaned(_pod_cause(live, events))


def _pod_cause(live: Object, events: Sequence[Object]) -> Cause | None:
    status, conditions = live.get("status", {}), conditions_of(live)
    if status.get("phase") == "Failed" and status.get("reason"):
        return _failed(status["reason"], status.get("message", ""))
    if ended_in_silence(live):
        fatal = (event for event in events if event.get("reason") in _FAILED)
        return next((_failed(event["reason"], event.get("message", "")) for event in fatal), None)
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return scheduling_cause(scheduled.get("message", ""))
    if _abandoned(conditions):
        return _node_not_ready(live)
    # What the kubelet did says more than how the program ended of it.
    told = event_cause(events, held(live), _killed(live)) if unexplained(live) else None
    return told or next((cause for item in _containers(status) if (cause := container_cause(item))), None)


def unexplained(live: Object) -> bool:
    """Whether the reason is in Events alone: a pod that waits for its volumes, or that the kubelet ended or holds."""
    status, conditions = live.get("status", {}), conditions_of(live)
    if "deletionTimestamp" in live["metadata"] or status.get("phase") in ("Failed", "Succeeded"):
        return False
    if (
        conditions.get("Ready", {}).get("status") == "True"
        or conditions.get("PodScheduled", {}).get("status") != "True"
    ):
        return False
    unanswering = any(item.get("started") and not item.get("ready") for item in status.get("containerStatuses") or ())
    return held(live) or _killed(live) or unanswering


def ended_in_silence(live: Object) -> bool:
    """Whether a replica is over that nobody deleted, and its status does not tell why.

    A replica has no end of its own. One that the kubelet evicts and that ends in good order, as an engine does, has
    succeeded as far as its status says; only an Event tells that it was evicted.
    """
    status = live.get("status", {})
    over = status.get("phase") == "Succeeded" and live.get("spec", {}).get("restartPolicy", "Always") == "Always"
    return over and not status.get("reason") and "deletionTimestamp" not in live["metadata"]


def held(live: Object) -> bool:
    """Whether a scheduled pod has no sandbox yet: its volumes or its network are not there."""
    status, conditions = live.get("status", {}), conditions_of(live)
    if conditions.get("PodScheduled", {}).get("status") != "True":
        return False
    if "PodReadyToStartContainers" in conditions:
        return conditions["PodReadyToStartContainers"].get("status") == "False" and status.get("phase") == "Pending"
    waiting = [item.get("state", {}).get("waiting", {}).get("reason") for item in _containers(status)]
    return bool(waiting) and set(waiting) <= _CREATING


def _killed(live: Object) -> bool:
    return any(killed(item) for item in live.get("status", {}).get("containerStatuses") or ())


def _containers(status: Object) -> list[Object]:
    """Init containers first: what they miss, the others wait for."""
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _failed(reason: str, message: str) -> Cause:
    known = reason in _FAILED
    means = _FAILED[reason] if known else f"{_NODE_REFUSED} ({reason})"
    if reason == "Evicted" and "exceed" in message and "limit" in message:  # its own, however much room the node has
        means = _OVER_ITS_LIMIT
    words = f"{means}: {message or 'no more is known'}"
    return Cause(reason if known else "NodeRefusedPod", words, final=reason == "DeadlineExceeded")


def _abandoned(conditions: dict[str, Object]) -> bool:
    """A node that falls silent cannot take back what its kubelet said last; the control plane marks the pod alone."""
    return (
        conditions.get("Ready", {}).get("status") == "False"
        and conditions.get("ContainersReady", {}).get("status") == "True"
    )


def _node_not_ready(live: Object) -> Cause:
    node = live.get("spec", {}).get("nodeName", "")
    return Cause(
        "NodeNotReady",
        f"node {node} does not answer: see kubectl describe node {node}; the replica is replaced after the pod's "
        "tolerationSeconds, five minutes by default",
        final=False,
    )
