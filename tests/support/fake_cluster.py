"""An API server of a few dictionaries: enough of apply, ownership and failure for whole reconciles."""

from __future__ import annotations

import copy
from typing import Any

from octavo_operator.errors import ApiError, Conflict
from octavo_operator.manifests import DEPLOYMENT, POD_MONITOR
from octavo_operator.names import Key
from octavo_operator.observed import Observed, read_pod, read_workload
from octavo_operator.plan import MarkVictim, Step


class FakeCluster:
    """Objects by kind, for one service. `failing` holds errors to raise once, by kind or "status" or "observe"."""

    def __init__(self, resource: dict[str, Any] | None, monitoring: bool = False) -> None:
        self.resource = resource
        self.children: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.monitoring = monitoring
        self.failing: dict[str, ApiError] = {}
        self.writes: list[str] = []

    async def service(self, key: Key) -> dict[str, Any] | None:
        return copy.deepcopy(self.resource)

    async def observe(self, resource: dict[str, Any]) -> Observed:
        self._fail("observe")
        deployed = self.children.get(DEPLOYMENT)
        return Observed(
            resource=resource,
            children=copy.deepcopy(self.children),
            pods=tuple(read_pod(pod) for pod in self.pods),
            workload=read_workload(deployed) if deployed else None,
            monitoring_available=self.monitoring,
        )

    async def execute(self, namespace: str, step: Step) -> None:
        if isinstance(step, MarkVictim):
            self.writes.append(f"mark {step.pod}")
            return
        kind = (step.manifest["apiVersion"], step.manifest["kind"])
        self._fail(kind[1])
        before = self.children.get(kind)
        if before and before["metadata"]["uid"] != step.uid:
            raise Conflict("another object of this name", 409)
        self.children[kind] = self._stored(step.manifest, before)
        self.writes.append(kind[1])

    async def write_status(self, resource: dict[str, Any], status: dict[str, Any]) -> None:
        self._fail("status")
        assert self.resource is not None
        self.resource["status"] = copy.deepcopy(status)
        self.writes.append("status")

    def conditions(self) -> dict[str, dict[str, Any]]:
        """The service's conditions by type."""
        assert self.resource is not None
        return {item["type"]: item for item in self.resource.get("status", {}).get("conditions", ())}

    def kinds(self) -> set[str]:
        """Kinds of the children that exist."""
        return {kind for _, kind in self.children}

    def _stored(self, manifest: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
        made = copy.deepcopy(manifest)
        generation = before["metadata"]["generation"] + 1 if before else 1
        made["metadata"] |= {"uid": f"uid-{manifest['kind']}", "generation": generation}
        if manifest["kind"] == DEPLOYMENT[1]:
            count = manifest["spec"]["replicas"]
            made["status"] = {"observedGeneration": generation, "replicas": count, "updatedReplicas": count}
        return made

    def _fail(self, what: str) -> None:
        if error := self.failing.pop(what, None):
            raise error


MONITOR_KIND = POD_MONITOR[1]
