"""A Deployment as decisions see it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo_operator import names
from octavo_operator.causes import Cause, workload_cause


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
