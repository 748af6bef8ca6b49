"""What the cluster has for one service: raw objects read into small values. Pure: no client, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from octavo_operator import names
from octavo_operator.causes import UNSCHEDULABLE, Cause, pod_cause, workload_cause
from octavo_operator.names import Kind


class Ownership(Enum):
    """Whose an object of a child's name is."""

    ABSENT = "absent"
    OURS = "ours"
    LEFTOVER = "leftover"  # of a deleted service of the same name: the garbage collector will take it
    FOREIGN = "foreign"


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
    return Workload(
        desired=live["spec"].get("replicas", 1),
        replicas=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        current=status.get("observedGeneration", 0) >= live["metadata"].get("generation", 1),
        cause=workload_cause(live),
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
        cause=None if ready else pod_cause(live),
        deletion_cost=meta.get("annotations", {}).get(names.DELETION_COST),
    )
