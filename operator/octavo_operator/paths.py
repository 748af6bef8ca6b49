"""Where the API server has each kind: explicit paths, so that no discovery and no grant for it is needed."""

from __future__ import annotations

from octavo_operator.manifests import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    JOB,
    NETWORK_POLICY,
    POD_MONITOR,
    PROMETHEUS_RULE,
    SERVICE,
    SERVICE_ACCOUNT,
)
from octavo_operator.names import Kind

POD: Kind = ("v1", "Pod")
EVENT: Kind = ("v1", "Event")

_PLURALS: dict[Kind, str] = {
    DEPLOYMENT: "deployments",
    SERVICE: "services",
    DISRUPTION_BUDGET: "poddisruptionbudgets",
    NETWORK_POLICY: "networkpolicies",
    SERVICE_ACCOUNT: "serviceaccounts",
    CONFIG_MAP: "configmaps",
    JOB: "jobs",
    POD_MONITOR: "podmonitors",
    PROMETHEUS_RULE: "prometheusrules",
    POD: "pods",
    EVENT: "events",
}

ONE_OF_EACH: tuple[Kind, ...] = (
    *(DEPLOYMENT, SERVICE, DISRUPTION_BUDGET, NETWORK_POLICY, SERVICE_ACCOUNT, CONFIG_MAP),
    *(POD_MONITOR, PROMETHEUS_RULE),
)
"""Kinds of which a service has one object, with a name that follows from its own."""


def path(api_version: str, plural: str, namespace: str | None, name: str | None = None) -> str:
    """The path of an object, or of all objects of a kind in a namespace or, without one, in the cluster."""
    root = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{where}/{plural}" + (f"/{name}" if name else "")


def plural(kind: Kind) -> str:
    """The name of a kind's objects in paths."""
    return _PLURALS[kind]


def of(kind: Kind, namespace: str | None, name: str | None = None) -> str:
    """The path of a kind that the operator handles."""
    return path(kind[0], _PLURALS[kind], namespace, name)
