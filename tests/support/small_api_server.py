"""An API server of one dictionary, in the client's place: versions, apply, status, lists, watches, and controllers.

Enough to run a whole operator in one process: everything above the HTTP connection is the real thing.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

from kubernetes.aio.client.exceptions import ApiException

from fault_rules import Call, read_call
from octavo_operator import names
from octavo_operator.watched import WATCHED, Watched

Object = dict[str, Any]
Place = tuple[str, str, str]
"""Plural name, namespace, name."""

_WATCHED = {watched.plural: watched for watched in WATCHED}


class SmallApiServer:
    """A `transport.Transport` that answers by itself.

    Args:
        tell: told of everything that happens, as a watch would: kind, object, whether it is gone.
    """

    def __init__(self, tell: Callable[[Watched, Object, bool], None]) -> None:
        self.tell = tell
        self.objects: dict[Place, Object] = {}
        self.calls: list[Call] = []
        self.client = SimpleNamespace(configuration=SimpleNamespace(api_key={}))
        self._versions = itertools.count(100)

    async def request(self, verb: str, path: str, **params: Any) -> Answer:
        query = {key: value for key, value in params.items() if isinstance(value, str)}
        call = read_call(verb, f"{path}?{urlencode(query)}")
        self.calls.append(call)
        await asyncio.sleep(0)
        return Answer(copy.deepcopy(self._answer(call, params)))

    def user_applies(self, name: str, **spec: Any) -> None:
        """A service as a user wants it."""
        place = (names.PLURAL, "team", name)
        before = self.objects.get(place, {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {}})
        self._store(place, copy.deepcopy(before) | {"spec": {"model": {"source": "file:///model"}} | spec})

    def delete(self, plural: str, name: str) -> None:
        """Removes an object; those that it owns go as well."""
        gone = self.objects.pop((plural, "team", name))
        gone["metadata"]["resourceVersion"] = str(next(self._versions))
        self._happened(plural, gone, True)
        for owned, _, child in [place for place, item in self.objects.items() if _owned(item, gone)]:
            self.delete(owned, child)

    def meddle(self, plural: str, name: str, **spec: Any) -> None:
        """Someone else changes fields of an object's spec."""
        found = copy.deepcopy(self.objects[plural, "team", name])
        self._store((plural, "team", name), found | {"spec": found["spec"] | spec})

    def _answer(self, call: Call, params: dict[str, Any]) -> Object:
        plural, _, part = call.resource.partition("/")
        place = (plural, call.namespace, call.name)
        if call.verb in ("get", "delete") and place not in self.objects:
            raise _error(404)
        match call.verb:
            case "get":
                return self.objects[place]
            case "list":
                return self._list(call, params.get("labelSelector"))
            case "create":
                return self._create(plural, call.namespace, params["body"])
            case "patch":
                return self._apply(place, params["body"], part)
            case "delete" if self.objects[place]["metadata"]["uid"] == params["body"]["preconditions"]["uid"]:
                self.delete(plural, call.name)
                return {"kind": "Status"}
        raise _error(409)

    def _create(self, plural: str, namespace: str, body: Object) -> Object:
        if plural == "events":
            return {}
        place = (plural, namespace, body["metadata"]["name"])
        if place in self.objects:
            raise _error(409)
        return self._store(place, body)

    def _list(self, call: Call, selector: str | None) -> Object:
        labels = dict(pair.split("=") for pair in (selector or "").split(",") if pair)
        found = [
            item
            for (plural, namespace, _), item in self.objects.items()
            if plural == call.resource and namespace == call.namespace and labels.items() <= _labels(item).items()
        ]
        return {"metadata": {}, "items": found}

    def _apply(self, place: Place, body: Object, part: str) -> Object:
        before, head = self.objects.get(place), body["metadata"]
        if before is None and (part or "uid" in head):
            raise _error(404 if part else 409)
        for mark in ("uid", "resourceVersion"):
            if before and mark in head and head[mark] != before["metadata"][mark]:
                raise _error(409)
        wanted = before | {"status": body["status"]} if before and part else (before or {}) | body
        return self._store(place, wanted)

    def _store(self, place: Place, wanted: Object) -> Object:
        """Writes an object unless it is already so."""
        before, made = self.objects.get(place), copy.deepcopy(wanted)
        given = {key: value for key, value in made["metadata"].items() if key != "resourceVersion"}
        kept = before["metadata"] if before else {"uid": f"uid-{next(self._versions)}", "generation": 0}
        made["metadata"] = kept | given | {"namespace": place[1], "name": place[2]}
        if before and made == before:
            return before
        if not before or made.get("spec") != before.get("spec"):
            made["metadata"] |= {"generation": kept["generation"] + 1}
        made["metadata"] |= {"resourceVersion": str(next(self._versions))}
        self.objects[place] = made
        self._happened(place[0], made, False)
        if place[0] in ("deployments", "poddisruptionbudgets", "jobs"):
            asyncio.get_running_loop().call_soon(self._controlled, place)
        asyncio.get_running_loop().call_soon(self._collected, place)
        return made

    def _controlled(self, place: Place) -> None:
        """What the controllers of Kubernetes note on an object that changed."""
        found = self.objects.get(place)
        generation = found["metadata"]["generation"] if found else 0
        if found is None or found.get("status", {}).get("observedGeneration") == generation:
            return
        count = found["spec"].get("replicas", 0)
        done = "Complete" if place[0] == "jobs" else "Progressing"
        conditions = [{"type": done, "status": "True", "reason": "NewReplicaSetAvailable"}]
        status = {"replicas": count, "updatedReplicas": count, "conditions": conditions}
        self._store(place, found | {"status": status | {"observedGeneration": generation}})

    def _collected(self, place: Place) -> None:
        """An object whose owner had gone when it was made goes as well."""
        owners = self.objects.get(place, {"metadata": {}})["metadata"].get("ownerReferences", ())
        living = {item["metadata"]["uid"] for item in self.objects.values()}
        if any(owner["uid"] not in living for owner in owners):
            self.delete(place[0], place[2])

    def _happened(self, plural: str, body: Object, gone: bool) -> None:
        self.tell(_WATCHED[plural], copy.deepcopy(body), gone)


class Answer:
    """A response that was read."""

    status = 200

    def __init__(self, document: Object) -> None:
        self._document = document

    async def json(self) -> Object:
        return self._document


def _labels(item: Object) -> dict[str, str]:
    labels: dict[str, str] = item["metadata"].get("labels", {})
    return labels


def _owned(item: Object, owner: Object) -> bool:
    return any(held["uid"] == owner["metadata"]["uid"] for held in item["metadata"].get("ownerReferences", ()))


def _error(status: int) -> ApiException:
    error = ApiException(status=status, reason="Because")
    error.body, error.headers = b"", {}
    return error
