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
REVISION = f"{GROUP}/revision"
"""Annotation of a Deployment and label of a Job: the revision of the spec it was made for."""
PURPOSE_LABEL = f"{GROUP}/purpose"
JOB_LABEL = f"{GROUP}/job-of"
"""Of a Job's pods, which must not carry SERVICE_LABEL: they serve nothing, and no selector may take them in."""
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"

CONTAINER = "engine"
LOADER = "loader"
PREFLIGHT = "preflight"
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


def child_name(parent: str, *suffixes: str) -> str:
    """The name of a child of `parent`: the parent's own where that is a DNS label of at most 63 characters.

    Otherwise (a resource's name may have dots, begin with a digit, and be 253 long) it is made into one, with a hash
    of the whole name so that two parents never share a child.

    Args:
        suffixes: what tells children of the same kind apart; they count into the 63 characters.
    """
    tail = "".join(f"-{suffix}" for suffix in suffixes)
    if len(parent) + len(tail) <= MAX_LABEL and _DNS_LABEL.match(parent):
        return parent + tail
    digest = hashlib.sha256(parent.encode()).hexdigest()[:_HASH_LENGTH]
    stem = re.sub(r"[^a-z0-9-]", "-", parent.lower())
    if not stem[:1].isalpha():
        stem = f"s-{stem}"
    return f"{stem[: MAX_LABEL - _HASH_LENGTH - 1 - len(tail)].rstrip('-')}-{digest}{tail}"


def selector_labels(parent: str) -> dict[str, str]:
    """The labels that find a service's pods; never changed, because a Deployment's selector cannot change."""
    return {SERVICE_LABEL: child_name(parent)}


def own_labels(parent: str) -> dict[str, str]:
    """Labels of every child. None is copied from the parent: GitOps tools would then take the child for their own."""
    return selector_labels(parent) | common_labels(parent)


def job_pod_labels(parent: str, purpose: str) -> dict[str, str]:
    """Labels of a Job's pods: found by a label of their own, selected by neither Service nor Deployment nor monitor."""
    return {JOB_LABEL: child_name(parent), PURPOSE_LABEL: purpose} | common_labels(parent)


def common_labels(parent: str) -> dict[str, str]:
    """Labels of everything that is made for a service, the pods of its Jobs included."""
    return {
        "app.kubernetes.io/name": "octavo-engine",
        "app.kubernetes.io/instance": child_name(parent),
        MANAGED_BY_LABEL: FIELD_MANAGER,
    }
