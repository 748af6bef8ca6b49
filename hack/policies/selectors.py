"""Which pods and namespaces a policy speaks of: Kubernetes' label selectors over plain documents. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

Document = Mapping[str, Any]
NAMESPACE_NAME = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Pod:
    """A pod that has an address of its own; `ports` are its named ports by protocol and name."""

    namespace: str
    labels: Mapping[str, str]
    address: str
    ports: Mapping[tuple[str, str], int]


def pods(documents: Sequence[Document]) -> Iterator[Pod]:
    """Pods that policies can speak of: running or starting, with an IPv4 address, not on the node's own network."""
    for document in documents:
        spec, status = document["spec"], document.get("status", {})
        if spec.get("hostNetwork") or status.get("phase") in ("Succeeded", "Failed"):
            continue
        for entry in status.get("podIPs", ()):
            if "." in entry["ip"]:
                metadata = document["metadata"]
                address = str(IPv4Address(entry["ip"]))
                yield Pod(metadata["namespace"], metadata.get("labels") or {}, address, dict(_named_ports(spec)))


def matches(selector: Document, labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes these labels; an empty one takes all. ValueError for an unknown operator."""
    wanted = (selector.get("matchLabels") or {}).items()
    return wanted <= labels.items() and all(
        _holds(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def _holds(expression: Document, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    raise ValueError(f"unknown operator {expression['operator']}")


def _named_ports(spec: Document) -> Iterator[tuple[tuple[str, str], int]]:
    # An init container that stays is a sidecar; the others' ports are of no use to anyone by the time they are asked.
    for container in (*spec.get("containers", ()), *spec.get("initContainers", ())):
        for port in container.get("ports") or ():
            if "name" in port:
                yield (port.get("protocol", "TCP"), port["name"]), port["containerPort"]
