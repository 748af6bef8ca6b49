"""An API server of a few dictionaries: enough of apply, ownership and failure for whole reconciles."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

from octavo_operator import names
from octavo_operator.errors import ApiError, Conflict
from octavo_operator.manifests import DEPLOYMENT, MONITORING
from octavo_operator.names import Key
from octavo_operator.observed import (
    Observed,
    Outcome,
    Ownership,
    Purpose,
    ownership,
    read_jobs,
    read_pod,
    read_workload,
)
from octavo_operator.plan import Apply, Create, Delete, MarkVictim, Step


class FakeCluster:
    """Objects by kind, for one service. `failing` holds errors to raise once, by kind or "status" or "observe".

    `dying` counts the writes that are still done; the next one raises `Died`, as a power cut would.
    `recalled` chooses, of all views since the start, the one that is known without asking; by default none is.
    """

    def __init__(self, resource: dict[str, Any] | None, monitoring: bool = False) -> None:
        self.resource = resource
        self.children: dict[tuple[str, str], dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.pods: list[dict[str, Any]] = []
        self.job_pods: list[dict[str, Any]] = []
        self.monitoring = monitoring
        self.failing: dict[str, ApiError] = {}
        self.dying: int | None = None
        self.writes: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.instant = True
        """Whether a new template has reached every pod at once."""
        self.recalled: Callable[[list[Observed]], Observed | None] = lambda views: None
        self.doubted = False
        self.asked = 0
        """How often everything was asked for."""
        self.views: list[Observed] = []
        self._made = 0
        self._version = 0
        self._latest: dict[str, Any] | None = None

    async def service(self, key: Key) -> dict[str, Any] | None:
        if self.resource is None:
            return None
        if self._latest != self.resource:  # the user has changed it
            self._latest = copy.deepcopy(self.resource)
            self._version = self._next()
        head = self.resource["metadata"] | {"resourceVersion": str(self._version)}
        return copy.deepcopy(self.resource | {"metadata": head})

    async def known(self, key: Key) -> Observed | None:
        if (resource := await self.service(key)) is not None:
            self.views.append(self._observed(resource))
        return None if self.doubted else self.recalled(self.views)

    async def is_latest(self, resource: dict[str, Any]) -> bool:
        current = await self.service(Key("", ""))
        return current is not None and current["metadata"] == resource["metadata"]

    def doubt(self, key: Key) -> None:
        self.doubted = True

    async def observe(self, resource: dict[str, Any]) -> Observed:
        self._fail("observe")
        self.asked += 1
        self.doubted = False
        return self._observed(resource)

    def _observed(self, resource: dict[str, Any]) -> Observed:
        deployed = self.children.get(DEPLOYMENT)
        ours = ownership(deployed, resource) is Ownership.OURS
        return Observed(
            resource=resource,
            children={kind: self._versioned(kind) for kind in self.children},
            pods=tuple(read_pod(pod) for pod in self.pods),
            workload=read_workload(deployed) if deployed and ours else None,
            monitoring_available=self.monitoring,
            jobs=read_jobs(copy.deepcopy(list(self.jobs.values())), self.job_pods, resource),
        )

    def _versioned(self, kind: tuple[str, str]) -> dict[str, Any]:
        """A child as the API server shows it: with another version whenever it is another."""
        live = copy.deepcopy(self.children[kind])
        digest = hashlib.sha256(json.dumps(live, sort_keys=True).encode()).hexdigest()
        live["metadata"]["resourceVersion"] = digest
        return live

    async def execute(self, namespace: str, step: Step, known: bool = False) -> bool:
        before = len(self.writes)
        self._do(step, known)
        return len(self.writes) > before

    def _do(self, step: Step, known: bool) -> None:
        match step:
            case MarkVictim():
                self._write(f"mark {step.pod}")
            case Create():
                name = step.manifest["metadata"]["name"]
                self._fail("Job")
                if name in self.jobs:
                    raise Conflict("it exists already", 409)
                self._write(f"create {_purpose(step.manifest)}")
                self.jobs[name] = copy.deepcopy(step.manifest)
                self.jobs[name]["metadata"]["uid"] = f"uid-{self._next()}"
            case Delete():
                if self.jobs.get(step.name, {}).get("metadata", {}).get("uid") == step.uid:
                    self._write(f"delete {_purpose(self.jobs[step.name])}")
                    del self.jobs[step.name]
            case Apply():
                self._apply(step, known)

    def _apply(self, step: Apply, known: bool) -> None:
        kind = (step.manifest["apiVersion"], step.manifest["kind"])
        self._fail(kind[1])
        before = self.children.get(kind)
        if before and before["metadata"]["uid"] != step.uid:
            raise Conflict("another object of this name", 409)
        if known and before and step.version != self._versioned(kind)["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified", 409)
        self._write(kind[1])
        self.children[kind] = self._stored(step.manifest, before)

    async def create_event(self, event: dict[str, Any]) -> None:
        self._fail("event")
        self.events.append(event)

    async def write_status(self, resource: dict[str, Any], status: dict[str, Any], known: bool = False) -> None:
        self._fail("status")
        current = await self.service(Key("", ""))
        assert self.resource is not None
        assert current is not None
        if known and resource["metadata"]["resourceVersion"] != current["metadata"]["resourceVersion"]:
            raise Conflict("the object has been modified", 409)
        self._write("status")
        self.resource["status"] = copy.deepcopy(status)

    def job(self, purpose: Purpose) -> dict[str, Any] | None:
        """The one Job of a purpose."""
        found = [job for job in self.jobs.values() if _purpose(job) == purpose.value]
        assert len(found) <= 1, found
        return found[0] if found else None

    def end_job(self, purpose: Purpose, outcome: Outcome, words: str = "") -> None:
        """Has the Job of a purpose end, its program leaving `words` as its last."""
        job = self.job(purpose)
        assert job is not None
        passed = outcome is Outcome.PASSED
        job["status"] = {"conditions": [{"type": "Complete" if passed else "Failed", "status": "True"}]}
        ended = {"exitCode": 0 if passed else 2, "message": words, "reason": "Completed" if passed else "Error"}
        self.job_pods.append(job_pod(job, {"terminated": ended}, phase="Succeeded" if passed else "Failed"))

    def roll_out(self) -> None:
        """Has the Deployment controller do all its work."""
        deployed = self.children[DEPLOYMENT]
        count = deployed["spec"]["replicas"]
        arrived = {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"}
        status = {"replicas": count, "updatedReplicas": count, "readyReplicas": count, "conditions": [arrived]}
        deployed["status"] = {"observedGeneration": deployed["metadata"]["generation"]} | status

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
        uid = before["metadata"]["uid"] if before else f"uid-{self._next()}"
        made["metadata"] |= {"uid": uid, "generation": generation}
        if manifest["kind"] == DEPLOYMENT[1]:
            made["status"] = self._rolled(manifest, before) | {"observedGeneration": generation}
        return made

    def _rolled(self, manifest: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
        """What the Deployment controller makes of it at once."""
        count = manifest["spec"]["replicas"]
        if before is None or (self.instant and "conditions" not in before["status"]):
            return {"replicas": count, "updatedReplicas": count}
        if self.instant:
            return before["status"] | {"replicas": count, "updatedReplicas": count}
        if before["spec"]["template"] != manifest["spec"]["template"]:
            return {"replicas": count + 1, "updatedReplicas": 1}
        status: dict[str, Any] = before["status"]
        return status

    def _write(self, what: str) -> None:
        if self.dying is not None:
            if self.dying == 0:
                raise Died
            self.dying -= 1
        self.writes.append(what)

    def _next(self) -> int:
        self._made += 1
        return self._made

    def _fail(self, what: str) -> None:
        if error := self.failing.pop(what, None):
            raise error


def job_pod(job: dict[str, Any], state: dict[str, Any], phase: str = "Running") -> dict[str, Any]:
    """A pod of a Job, with one container in this state."""
    head = job["metadata"]
    owner = {"kind": "Job", "name": head["name"], "uid": head["uid"], "controller": True}
    status = {"phase": phase, "containerStatuses": [{"name": _purpose(job), "image": "image", "state": state}]}
    return {"metadata": {"name": f"{head['name']}-x", "ownerReferences": [owner]}, "status": status}


def _purpose(job: dict[str, Any]) -> str:
    purpose: str = job["metadata"]["labels"][names.PURPOSE_LABEL]
    return purpose


class Died(BaseException):
    """The operator's process ends here."""


MONITORING_KINDS = {kind for _, kind in MONITORING}
