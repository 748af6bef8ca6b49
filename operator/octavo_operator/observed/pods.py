"""A pod as decisions see it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from octavo_operator import names
from octavo_operator.causes import UNSCHEDULABLE, Cause, pod_cause, unexplained


@dataclass(frozen=True)
class Pod:
    """One engine pod, or a pod of a Job.

    Attributes:
        unexplained: only Events tell what it waits for, and no change of the pod will announce them.
        crowded_out: no node takes it, and only because others hold the room that it needs.
        fetching: `octavo fetch` runs in it and can be asked for its progress.
        restarts: of its containers, so far.
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
    restarts: int = 0

    @property
    def starting(self) -> bool:
        """Counts as capacity that is on its way."""
        return not (self.ready or self.terminating or self.finished)

    @property
    def unschedulable(self) -> bool:
        """No node takes it."""
        return self.starting and self.cause is not None and self.cause.reason in UNSCHEDULABLE


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
        restarts=sum(item.get("restartCount", 0) for item in status.get("containerStatuses") or ()),
    )


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
