"""What the operator watches, and which service an object belongs to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_operator import names
from octavo_operator.heartbeat import Identity, Sight
from octavo_operator.names import Key


@dataclass(frozen=True)
class Watched:
    """A kind whose objects are watched; those that carry our label alone, unless it is the service's own kind."""

    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """As in a manifest."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def selector(self) -> str | None:
        """The label selector that the API server applies; None: all objects."""
        return None if self == SERVICES else f"{names.MANAGED_BY_LABEL}={names.FIELD_MANAGER}"


SERVICES = Watched(names.GROUP, names.VERSION, names.PLURAL)
WATCHED = (
    SERVICES,
    Watched("apps", "v1", "deployments"),
    Watched("", "v1", "services"),
    Watched("policy", "v1", "poddisruptionbudgets"),
    Watched("networking.k8s.io", "v1", "networkpolicies"),
    Watched("", "v1", "serviceaccounts"),
    Watched("", "v1", "configmaps"),
    Watched("batch", "v1", "jobs"),
    Watched("", "v1", "pods"),
)


def sight(watched: Watched, body: Mapping[str, Any]) -> tuple[Identity, Sight]:
    """What an object of a watched kind tells: who it is, at which version, and whose."""
    head = body["metadata"]
    key = Key(head["namespace"], head["name"]) if watched == SERVICES else parent_key(body)
    return Identity(watched.plural, head["uid"]), Sight(head["resourceVersion"], key)


def parent_key(body: Mapping[str, Any]) -> Key | None:
    """The service that an object belongs to: by its controller reference, for pods by the annotation they are given."""
    head = body["metadata"]
    for owner in head.get("ownerReferences", ()):
        if owner.get("controller") and owner["kind"] == names.KIND:
            return Key(head["namespace"], owner["name"])
    parent = head.get("annotations", {}).get(names.PARENT_ANNOTATION)
    return Key(head["namespace"], parent) if parent else None
