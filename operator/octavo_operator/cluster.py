"""The only module that talks to the API server. Plain objects in and out; errors come out as our own types.

Everything goes through the official client's transport with explicit paths: no discovery, so no grants for it.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException

from octavo_operator import names, observer, paths, transport
from octavo_operator.config import OperatorConfig
from octavo_operator.errors import ApiError, ConfigError, Conflict, Missing, Refused, Retryable, Throttled
from octavo_operator.heartbeat import Identity, Sight
from octavo_operator.manifests import MONITORING, name_of
from octavo_operator.metrics import Metrics
from octavo_operator.names import Key, Kind
from octavo_operator.observed import Observed
from octavo_operator.plan import VICTIM_COST, Apply, Create, Delete, MarkVictim, Step
from octavo_operator.store import Store
from octavo_operator.transport import Transport
from octavo_operator.watched import WATCHED, Watched, sight

Object = dict[str, Any]

_MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_PAGE = 500
_MONITORING_SECONDS = 60.0
_MONITOR_SECONDS = 30.0
"""Monitors and rules are not watched, as not every cluster knows them: what is known of one is believed this long."""
_NEVER = "1"
"""A version that no object has: an apply that names it creates, and is refused whatever it meets under that name."""


async def credentials(settings: OperatorConfig) -> Any:
    """The client configuration of the named kubeconfig, of the pod's service account, or of the default kubeconfig.

    Raises:
        ConfigError: none of them can be used.
    """
    configuration = client.Configuration()
    try:
        if not settings.kubeconfig and _SERVICE_ACCOUNT.exists():
            config.load_incluster_config(client_configuration=configuration)
        else:
            path = settings.kubeconfig or None
            await config.load_kube_config(config_file=path, client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise ConfigError(f"no way to reach a cluster: {error}") from error
    return configuration


class Cluster:
    """Reads and writes of one operator. Every method raises `ApiError` types.

    Args:
        api: a `Transport`.
    """

    def __init__(self, api: Any, settings: OperatorConfig, metrics: Metrics) -> None:
        self._api = api
        self._settings = settings
        self._metrics = metrics
        self.store = Store()
        self._monitoring: tuple[float, bool] | None = None
        self._monitoring_told: bool | None = None
        self.trouble: str | None = "the API server was not asked yet"
        """For /readyz: None once and while the API server answers, whatever it says."""

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: OperatorConfig, metrics: Metrics) -> AsyncIterator[Cluster]:
        """A cluster whose connections close at the end of the block."""
        # Where no proxy is set, none is looked for: that is done in a thread, at every request.
        proxied = bool(urllib.request.getproxies())
        async with client.ApiClient(await credentials(settings)) as api, transport.session(api, proxied) as session:
            yield cls(Transport(api, session), settings, metrics)

    async def service(self, key: Key) -> Object | None:
        """The InferenceService as the API server has it, or None when it is gone."""
        since = self.store.mark()
        found = await self.find(paths.path(names.API_VERSION, names.PLURAL, key.namespace, key.name))
        self.store.see(key, {names.PLURAL: [found] if found else []}, since)
        return found

    async def service_keys(self) -> set[Key]:
        """Every InferenceService the operator serves."""
        keys = set()
        for namespace in self._settings.namespace_list or (None,):
            path = paths.path(names.API_VERSION, names.PLURAL, namespace)
            for item in await self.list_all(path):
                keys.add(Key(item["metadata"]["namespace"], item["metadata"]["name"]))
        return keys

    async def fill(self) -> None:
        """Lists everything that is watched, so that services can be looked at without asking."""
        since = self.store.mark()
        found = {watched.plural: await self._all(watched) for watched in WATCHED}
        self.store.replace(found, since)

    async def sights(self) -> dict[Identity, Sight]:
        """The version of every watched object: lists of nothing but metadata."""
        items = [(watched, await self._all(watched, accept=_METADATA_ONLY)) for watched in WATCHED]
        return dict(sight(watched, item) for watched, listed in items for item in listed)

    async def _all(self, watched: Watched, **more: Any) -> list[Object]:
        listed: list[Object] = []
        for namespace in self._settings.namespace_list or (None,):
            path = paths.path(watched.api_version, watched.plural, namespace)
            listed += await self.list_all(path, watched.selector, **more)
        return listed

    async def known(self, key: Key) -> Observed | None:
        """A service as it is known without asking for it; None when it is not known well enough."""
        if self.store.service(key) is None:
            return None
        monitoring = await self._monitoring_available()
        if monitoring and not self.store.new(key):
            await asyncio.gather(*(self._see(kind, key) for kind in MONITORING))
        found, resource = observer.recall(self.store, key, monitoring), self.store.service(key)
        return await observer.read(self, resource, found, monitoring) if resource else None

    async def observe(self, resource: Object) -> Observed:
        """Everything that belongs to a service, read now."""
        key, since = Key(resource["metadata"]["namespace"], resource["metadata"]["name"]), self.store.mark()
        monitoring = await self._monitoring_available()
        found = await observer.ask(self, resource, monitoring)
        self.store.learn(key, found.by_plural(), since)
        return await observer.read(self, resource, found, monitoring)

    async def is_latest(self, resource: Object) -> bool:
        """Whether a service is still as it is known: the API server is asked, as no child's version tells.

        Lists and watches may be behind, and tell of the children's end before that of the service.
        """
        head = resource["metadata"]
        current = await self.service(Key(head["namespace"], head["name"]))
        return current is not None and current["metadata"]["resourceVersion"] == head["resourceVersion"]

    def doubt(self, key: Key) -> None:
        """Has the next look at a service ask for everything."""
        self.store.doubt(key)

    async def _see(self, kind: Kind, key: Key) -> None:
        plural, name, since = paths.plural(kind), name_of(kind, key.name), self.store.mark()
        if self.store.age(plural, key, name) > _MONITOR_SECONDS:
            found = await self.find(paths.of(kind, key.namespace, name))
            self.store.see(key, {plural: [found] if found else []}, since)

    async def create_event(self, event: Object) -> None:
        """Creates a core/v1 Event."""
        await self._request("POST", paths.path("v1", "events", event["metadata"]["namespace"]), body=event)

    async def execute(self, namespace: str, step: Step, known: bool = False) -> bool:
        """Does one step of a plan; whether that has changed anything.

        Args:
            known: the step rests on what is known without asking.

        Raises:
            Conflict: for a step that is `known`, also where the object has changed since.
        """
        match step:
            case MarkVictim():
                body: Object = {"metadata": {"annotations": {names.DELETION_COST: VICTIM_COST}}}
                path = paths.of(paths.POD, namespace, step.pod)
                return self._learn(paths.POD, await self._request("PATCH", path, body=body, content=_MERGE_PATCH))
            case Create():
                kind = _kind(step.manifest)
                path = paths.of(kind, namespace)
                answer = await self._request("POST", path, body=step.manifest, fieldManager=names.FIELD_MANAGER)
                return self._learn(kind, answer)
            case Delete():
                return await self._delete(namespace, step)
            case Apply():
                return await self._apply(step, known)

    async def _apply(self, step: Apply, known: bool) -> bool:
        """Fields of others are taken over only on an object known to be ours; no other is touched by a creation."""
        head = step.manifest["metadata"]
        if step.uid is None:
            exactly = {"resourceVersion": _NEVER}
        else:
            exactly = {"uid": step.uid} | ({"resourceVersion": step.version} if known and step.version else {})
        manifest = step.manifest | {"metadata": head | exactly}
        path = paths.of(_kind(manifest), head["namespace"], head["name"])
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true" if step.uid else "false"}
        answer = await self._request("PATCH", path, body=manifest, content=_APPLY_PATCH, **query)
        return self._learn(_kind(manifest), answer)

    async def _delete(self, namespace: str, step: Delete) -> bool:
        """With what it owns; an object that is gone, or another of its name, is none of our business."""
        body = {"preconditions": {"uid": step.uid}, "propagationPolicy": "Background"}
        with suppress(Missing, Conflict):
            answer = await self._request("DELETE", paths.of(step.kind, namespace, step.name), body=body)
            if answer.get("kind") != "Status":  # others have a hold on it: it goes later
                return self._learn(step.kind, answer)
        self.store.end(step.uid)
        return True

    def _learn(self, kind: Kind, answer: Object) -> bool:
        return self.store.put(paths.plural(kind), answer)

    async def write_status(self, resource: Object, status: Object, known: bool = False) -> None:
        """Replaces our fields of the status subresource; spec, labels and annotations are out of its reach.

        Args:
            known: it tells of what is known without asking: refused where the resource has changed since.
        """
        head = resource["metadata"]
        exactly = {key: head[key] for key in ("name", "namespace", "uid")}
        if known:
            exactly["resourceVersion"] = head["resourceVersion"]
        body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": exactly, "status": status}
        path = paths.path(names.API_VERSION, names.PLURAL, head["namespace"], head["name"]) + "/status"
        query = {"fieldManager": names.FIELD_MANAGER, "force": "true"}
        answer = await self._request("PATCH", path, body=body, content=_APPLY_PATCH, **query)
        self.store.put(names.PLURAL, answer)

    async def lease(self) -> Object | None:
        """The operator's Lease, if there is one."""
        return await self.find(self._lease_path(self._settings.lease_name))

    async def create_lease(self, spec: Object) -> Object:
        """Makes the Lease. Raises `Conflict` when another was faster."""
        body = {"metadata": {"name": self._settings.lease_name}, "spec": spec}
        return await self._request("POST", self._lease_path(), body=body)

    async def replace_lease(self, lease: Object, spec: Object) -> Object:
        """Writes the Lease unless it changed since it was read; then raises `Conflict`."""
        body = {"metadata": lease["metadata"], "spec": spec}
        return await self._request("PUT", self._lease_path(self._settings.lease_name), body=body)

    def _lease_path(self, name: str | None = None) -> str:
        return paths.path("coordination.k8s.io/v1", "leases", self._settings.lease_namespace, name)

    async def monitoring_changed(self) -> bool:
        """Whether the Prometheus Operator's kinds have come or gone since this was asked before."""
        available, before = await self._monitoring_available(), self._monitoring_told
        self._monitoring_told = available
        return before is not None and before != available

    async def _monitoring_available(self) -> bool:
        """Whether the kinds of the Prometheus Operator are installed, asked at most once a minute."""
        now = asyncio.get_running_loop().time()
        if self._monitoring is None or now - self._monitoring[0] > _MONITORING_SECONDS:
            found = await self.find(f"/apis/{MONITORING[0][0]}")
            kinds = {item["kind"] for item in (found or {}).get("resources", ())}
            self._monitoring = (now, all(kind in kinds for _, kind in MONITORING))
        return self._monitoring[1]

    async def find(self, path: str) -> Object | None:
        """The object at a path, or None when it is not there."""
        try:
            return await self._request("GET", path)
        except Missing:
            return None

    async def list_all(self, path: str, selector: str | None = None, **more: Any) -> list[Object]:
        """Every object of a list, whatever its pages.

        Args:
            more: parameters of the request.
        """
        items: list[Object] = []
        token: str | None = ""
        page: Object = {}
        while token is not None:
            page = await self._request(
                "GET", path, limit=_PAGE, labelSelector=selector, **{"continue": token or None}, **more
            )
            items += page["items"] or ()  # an empty list of metadata comes as null
            token = page["metadata"].get("continue") or None
        # Items do not say what they are, as an object that is read or watched does.
        kind = {"apiVersion": page["apiVersion"], "kind": page["kind"].removesuffix("List")} if "kind" in page else {}
        return [kind | item for item in items]

    async def _request(self, verb: str, path: str, content: str | None = None, **params: Any) -> Object:
        try:
            return await self._ask(verb, path, content, **params)
        except Refused as error:
            if error.status != 401 or not await self._token_renewed():
                raise
        return await self._ask(verb, path, content, **params)

    async def _token_renewed(self) -> bool:
        """Reads the credentials again, as a token may have been rotated; whether they are others now."""
        configuration = self._api.client.configuration
        before = dict(configuration.api_key)
        try:
            configuration.api_key = (await credentials(self._settings)).api_key
        except ConfigError:  # the file is just being written
            return False
        return bool(before != configuration.api_key)

    async def _ask(self, verb: str, path: str, content: str | None, **params: Any) -> Object:
        timeout = self._settings.api_timeout_seconds
        try:
            async with asyncio.timeout(timeout):
                response = await self._api.request(verb, path, content_type=content, **params)
                answer: Object = await response.json()
            if not isinstance(answer, dict):
                raise ValueError("the answer is no object")
        except ApiException as error:
            self._answered(verb, path, error.status)
            raise _translated(error, f"{verb} {path}") from error
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            self._metrics.api_requests.labels(verb, _resource(path), "none").inc()
            self.trouble = f"the API server does not answer ({type(error).__name__}: {str(error)[:200]})"
            raise Retryable(f"{verb} {path}: {self.trouble}") from error
        self._answered(verb, path, response.status)
        return answer

    def _answered(self, verb: str, path: str, status: int | None) -> None:
        self._metrics.api_requests.labels(verb, _resource(path), str(status)).inc()
        self.trouble = None


def _kind(manifest: Object) -> Kind:
    return manifest["apiVersion"], manifest["kind"]


def _resource(path: str) -> str:
    """The plural name in a path that `_path` made: a metric's label holds no name of an object, it would grow."""
    names_only = path.removeprefix("/apis/").removeprefix("/api/").split("/")[1 if path.startswith("/api/") else 2 :]
    names_only = names_only[2:] if names_only[:1] == ["namespaces"] else names_only
    return "/".join(names_only[:1] + names_only[2:]) or "discovery"


def _translated(error: ApiException, request: str) -> ApiError:
    """Our type for a status; the message holds the server's words but no header."""
    status = error.status or 0
    message = f"{request}: {status} {_server_words(error)}"
    if status == 404:
        return Missing(message, status)
    if status == 409:
        return Conflict(message, status)
    if status in (429, 503):
        return Throttled(message, status, _retry_after(error))
    if 400 <= status < 500 and status != 408:
        return Refused(message, status)
    return Retryable(message, status)


def _server_words(error: ApiException) -> str:
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")
    return f"{error.reason or ''} {body[:600]}".strip()


def _retry_after(error: ApiException) -> float:
    try:
        return min(60.0, max(1.0, float((error.headers or {}).get("Retry-After", "1"))))
    except ValueError:
        return 1.0
