"""Every name that Kubernetes sees, spelled once: group, labels, annotations, ports, and the names of children."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

GROUP = "octavo.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "InferenceService"
PLURAL = "inferenceservices"
FIELD_MANAGER = "octavo-operator"

SERVICE_LABEL = f"{GROUP}/service"
PARENT_ANNOTATION = f"{GROUP}/inferenceservice"
RENDERED_ANNOTATION = f"{GROUP}/rendered"
RESTARTED_ANNOTATION = f"{GROUP}/restarted-at"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

CONTAINER = "engine"
API_PORT, API_PORT_NAME = 8000, "api"
MANAGEMENT_PORT, MANAGEMENT_PORT_NAME = 8001, "management"

Kind = tuple[str, str]
"""apiVersion and kind."""

MAX_LABEL = 63
_DNS_LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_HASH_LENGTH = 8


@dataclass(frozen=True, order=True)
class Key:
    """Where an InferenceService lives; the key of the work queue and of every table."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def child_name(parent: str) -> str:
    """The name of every child of `parent`: the parent's own where that is a DNS label of at most 63 characters.

    Otherwise (a resource's name may have dots, begin with a digit, and be 253 long) it is made into one, with a hash
    of the whole name so that two parents never share a child.
    """
    if len(parent) <= MAX_LABEL and _DNS_LABEL.match(parent):
        return parent
    digest = hashlib.sha256(parent.encode()).hexdigest()[:_HASH_LENGTH]
    stem = re.sub(r"[^a-z0-9-]", "-", parent.lower())
    if not stem[:1].isalpha():
        stem = f"s-{stem}"
    return f"{stem[: MAX_LABEL - _HASH_LENGTH - 1].rstrip('-')}-{digest}"


def selector_labels(parent: str) -> dict[str, str]:
    """The labels that find a service's pods; never changed, because a Deployment's selector cannot change."""
    return {SERVICE_LABEL: child_name(parent)}


def own_labels(parent: str) -> dict[str, str]:
    """Labels of every child. None is copied from the parent: GitOps tools would then take the child for their own."""
    return selector_labels(parent) | {
        "app.kubernetes.io/name": "octavo-engine",
        "app.kubernetes.io/instance": child_name(parent),
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
    }
