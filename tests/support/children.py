"""The objects that belong to a service, in a form that can be compared: over time, and between services of one spec."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from cluster_api import SERVICES, ClusterApi, Object, path_of

KINDS = (
    ("apps/v1", "deployments"),
    ("batch/v1", "jobs"),
    ("networking.k8s.io/v1", "networkpolicies"),
    ("policy/v1", "poddisruptionbudgets"),
    ("v1", "configmaps"),
    ("v1", "serviceaccounts"),
    ("v1", "services"),
)
"""apiVersion and plural of every kind of child; the PodMonitor's is not installed everywhere."""

LABEL = "octavo.dev/service"
_SERVERS_OWN = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")
_REVISION = "deployment.kubernetes.io/revision"


def live(api: ClusterApi, namespace: str) -> list[tuple[str, Object]]:
    """Plural and object of everything that carries our label, pods aside."""
    return [(kind[1], item) for kind in KINDS for item in api.items(path_of(kind, namespace), LABEL)]


def orphans(api: ClusterApi, namespace: str) -> list[str]:
    """Children without a living parent, and parents' children that exist twice."""
    parents = {item["metadata"]["uid"] for item in api.items(path_of(SERVICES, namespace))}
    return [
        f"{plural}/{item['metadata']['name']}"
        for plural, item in live(api, namespace)
        if not parents & {owner["uid"] for owner in item["metadata"].get("ownerReferences", ())}
    ]


def of_service(api: ClusterApi, namespace: str, name: str) -> dict[str, Object]:
    """A service's children by `plural/name`, with its own name written as NAME and without what the server adds."""
    return of_services(api, namespace).get(name, {})


def of_services(api: ClusterApi, namespace: str) -> dict[str, dict[str, Object]]:
    """The children of every service of a namespace, by the services' names."""
    parents = {item["metadata"]["uid"]: item["metadata"]["name"] for item in api.items(path_of(SERVICES, namespace))}
    found: dict[str, dict[str, Object]] = {name: {} for name in parents.values()}
    for plural, item in live(api, namespace):
        for owner in item["metadata"].get("ownerReferences", ()):
            if name := parents.get(owner["uid"]):
                key = f"{plural}/{item['metadata']['name']}".replace(name, "NAME")
                found[name][key] = comparable(item, name, owner["uid"])
    return found


def comparable(item: Object, name: str, uid: str) -> Object:
    """What of a child follows from the spec."""
    head = {key: value for key, value in item["metadata"].items() if key not in _SERVERS_OWN}
    head["annotations"] = {
        key: value
        for key, value in head.get("annotations", {}).items()
        if key not in (_REVISION, "octavo.dev/rendered")  # the second is a digest that holds the name
    }
    kept = {key: value for key, value in item.items() if key != "status"} | {"metadata": head}
    if "clusterIP" in kept.get("spec", {}):
        kept["spec"] = {key: value for key, value in kept["spec"].items() if not key.startswith("clusterIP")}
    if "data" in kept:  # a ConfigMap; items of a list do not say their kind
        kept["data"] = _active_template(kept["data"])
    text = re.sub(rf"\b{re.escape(name)}\b", "NAME", json.dumps(kept, sort_keys=True)).replace(uid, "UID")
    made: Object = json.loads(text)
    return made


def _active_template(data: dict[str, str]) -> Object:
    """Of a service's revisions the active one: which others are kept is history, and does not follow from the spec."""
    return {"active": data["active"], "template": json.loads(data[data["active"]])["template"]}


def differences(before: dict[str, Object], after: dict[str, Object]) -> list[str]:
    """Where two sets of children differ, for a person to read; empty when they are the same."""
    found = [f"{name} is only in the {side}" for name, side in _only(before, after)]
    for name in before.keys() & after.keys():
        found += [f"{name}{where}" for where in _paths(before[name], after[name], "")]
    return sorted(found)


def _only(before: Iterable[str], after: Iterable[str]) -> list[tuple[str, str]]:
    return [(name, "first") for name in set(before) - set(after)] + [
        (name, "second") for name in set(after) - set(before)
    ]


def _paths(one: Any, other: Any, path: str) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        return [found for key in keys for found in _paths(one.get(key), other.get(key), f"{path}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for index, (a, b) in pairs for found in _paths(a, b, f"{path}[{index}]")]
    return [] if one == other else [f"{path}: {one!r} and {other!r}"]
