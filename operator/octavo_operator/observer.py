"""What belongs to a service, asked of the API server or remembered from what it told; and read into values."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from octavo_operator import causes, names, paths
from octavo_operator.errors import Refused
from octavo_operator.manifests import DEPLOYMENT, JOB, MONITORING, name_of
from octavo_operator.names import Key, Kind
from octavo_operator.observed import Observed, Ownership, ownership, read_jobs, read_pod, read_workload
from octavo_operator.store import Store

Object = dict[str, Any]

_EXPLAINED_AT_ONCE = 8  # pods whose Events are read in one look; one service has one trouble at a time


class Reader(Protocol):
    """What `cluster.Cluster` offers."""

    async def find(self, path: str) -> Object | None:
        """An object, or None when it is not there."""
        ...

    async def list_all(self, path: str, selector: str | None = None, **more: Any) -> list[Object]:
        """All objects of a list, whatever its pages."""
        ...


@dataclass(frozen=True)
class Found:
    """The objects about one service as the API server has them.

    Attributes:
        children: by kind, those of which there is one; also one of that name that is not ours.
    """

    children: Mapping[Kind, Object | None]
    jobs: list[Object]
    pods: list[Object]

    def by_plural(self) -> dict[str, list[Object]]:
        """All of them, for `Store`."""
        single = {paths.plural(kind): [live] if live else [] for kind, live in self.children.items()}
        return single | {paths.plural(JOB): self.jobs, paths.plural(paths.POD): self.pods}


def kinds(monitoring: bool) -> list[Kind]:
    """Kinds of which there is one; those of the Prometheus Operator are not known in every cluster."""
    return [kind for kind in paths.ONE_OF_EACH if kind not in MONITORING or monitoring]


async def ask(reader: Reader, resource: Object, monitoring: bool) -> Found:
    """Reads everything from the API server, so that no view that is behind can matter."""
    namespace, parent = resource["metadata"]["namespace"], resource["metadata"]["name"]
    wanted = kinds(monitoring)
    live, jobs, pods = await asyncio.gather(
        asyncio.gather(*(reader.find(paths.of(kind, namespace, name_of(kind, parent))) for kind in wanted)),
        reader.list_all(paths.of(JOB, namespace), _selector(names.selector_labels(parent))),
        reader.list_all(paths.of(paths.POD, namespace), _selector(names.common_labels(parent))),
    )
    return Found(dict(zip(wanted, live, strict=True)), jobs, pods)


def recall(store: Store, key: Key, monitoring: bool) -> Found:
    """The same from what is known: no request. An object that is not known may exist; whoever creates it finds out."""
    return Found(
        {kind: store.one(paths.plural(kind), key, name_of(kind, key.name)) for kind in kinds(monitoring)},
        _labelled(store.all_of(paths.plural(JOB), key), names.selector_labels(key.name)),
        _labelled(store.all_of(paths.plural(paths.POD), key), names.common_labels(key.name)),
    )


async def read(reader: Reader, resource: Object, found: Found, monitoring: bool) -> Observed:
    """What the objects say, and what Events say of those that are silent.

    Args:
        monitoring: whether the cluster knows the kinds of the Prometheus Operator.
    """
    deployment = found.children[DEPLOYMENT]
    silent = [
        *(job for job in found.jobs if causes.podless(job)),
        *(pod for pod in found.pods if causes.unexplained(pod)),
        *([pod for pod in found.pods if causes.ended_in_silence(pod)] if _lacks(deployment) else ()),
    ]
    told = await _events_about(reader, resource["metadata"]["namespace"], silent)
    ours = deployment is not None and ownership(deployment, resource) is Ownership.OURS
    engines = [read_pod(pod, told.get(_uid(pod), ())) for pod in found.pods if names.SERVICE_LABEL in _labels(pod)]
    return Observed(
        resource=resource,
        children=found.children,
        pods=tuple(sorted(engines, key=lambda pod: pod.name)),
        workload=read_workload(deployment) if deployment and ours else None,
        monitoring_available=monitoring,
        jobs=read_jobs(found.jobs, [pod for pod in found.pods if names.JOB_LABEL in _labels(pod)], resource, told),
    )


def _lacks(deployment: Object | None) -> bool:
    """Whether fewer replicas serve than shall: else one that ended is no matter, and lies around for long."""
    if deployment is None:
        return False
    return bool(deployment.get("status", {}).get("readyReplicas", 0) < deployment["spec"].get("replicas", 1))


async def _events_about(reader: Reader, namespace: str, objects: list[Object]) -> dict[str, list[Object]]:
    """Events about a few objects, by uid: they alone tell why a pod has no volume, or a Job no pod."""

    async def about(uid: str) -> list[Object]:
        try:
            return await reader.list_all(paths.of(paths.EVENT, namespace), fieldSelector=f"involvedObject.uid={uid}")
        except Refused:
            return []  # a role of an older chart: what is known from the objects themselves must do

    uids = [_uid(item) for item in objects[:_EXPLAINED_AT_ONCE]]
    return dict(zip(uids, await asyncio.gather(*(about(uid) for uid in uids)), strict=True))


def _uid(item: Object) -> str:
    return str(item["metadata"]["uid"])


def _labels(item: Object) -> dict[str, str]:
    return item["metadata"].get("labels") or {}


def _labelled(items: list[Object], labels: dict[str, str]) -> list[Object]:
    return [item for item in items if labels.items() <= _labels(item).items()]


def _selector(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
