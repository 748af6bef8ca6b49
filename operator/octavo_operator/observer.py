"""Reads everything that belongs to a service from the API server: no cache, so no stale view to act on."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from octavo_operator import causes, names, paths
from octavo_operator.errors import Refused
from octavo_operator.manifests import DEPLOYMENT, JOB, POD_MONITOR, name_of
from octavo_operator.observed import Observed, Ownership, ownership, read_jobs, read_pod, read_workload

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


async def observe(reader: Reader, resource: Object, monitoring: bool) -> Observed:
    """What the cluster has for a service.

    Args:
        monitoring: whether the cluster knows PodMonitors.
    """
    namespace, parent = resource["metadata"]["namespace"], resource["metadata"]["name"]
    kinds = [kind for kind in paths.ONE_OF_EACH if kind != POD_MONITOR or monitoring]
    live, jobs, pods = await asyncio.gather(
        asyncio.gather(*(reader.find(paths.of(kind, namespace, name_of(kind, parent))) for kind in kinds)),
        reader.list_all(paths.of(JOB, namespace), _selector(names.selector_labels(parent))),
        reader.list_all(paths.of(paths.POD, namespace), _selector(names.common_labels(parent))),
    )
    children = dict(zip(kinds, live, strict=True))
    silent = [*(job for job in jobs if causes.podless(job)), *(pod for pod in pods if causes.unexplained(pod))]
    told = await _events_about(reader, namespace, silent)
    deployment = children[DEPLOYMENT]
    ours = deployment is not None and ownership(deployment, resource) is Ownership.OURS
    engines = [read_pod(pod, told.get(_uid(pod), ())) for pod in pods if names.SERVICE_LABEL in _labels(pod)]
    return Observed(
        resource=resource,
        children=children,
        pods=tuple(sorted(engines, key=lambda pod: pod.name)),
        workload=read_workload(deployment) if deployment and ours else None,
        monitoring_available=monitoring,
        jobs=read_jobs(jobs, [pod for pod in pods if names.JOB_LABEL in _labels(pod)], resource, told),
    )


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


def _selector(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())
