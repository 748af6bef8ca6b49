"""What every child has: its kind, its metadata with the owner reference, and the seal."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from octavo_operator import names
from octavo_operator.names import Kind

Manifest = dict[str, Any]

DEPLOYMENT: Kind = ("apps/v1", "Deployment")
SERVICE: Kind = ("v1", "Service")
DISRUPTION_BUDGET: Kind = ("policy/v1", "PodDisruptionBudget")
NETWORK_POLICY: Kind = ("networking.k8s.io/v1", "NetworkPolicy")
SERVICE_ACCOUNT: Kind = ("v1", "ServiceAccount")
CONFIG_MAP: Kind = ("v1", "ConfigMap")
JOB: Kind = ("batch/v1", "Job")
POD_MONITOR: Kind = ("monitoring.coreos.com/v1", "PodMonitor")
PROMETHEUS_RULE: Kind = ("monitoring.coreos.com/v1", "PrometheusRule")
MONITORING = (POD_MONITOR, PROMETHEUS_RULE)
"""The Prometheus Operator's kinds, which not every cluster knows."""


_SUFFIXES = {CONFIG_MAP: ("revisions",)}  # a ConfigMap of the service's own name may well be one of the user's


def name_of(kind: Kind, parent: str) -> str:
    """The name of the one child of a kind."""
    return names.child_name(parent, *_SUFFIXES.get(kind, ()))


def metadata(resource: Manifest, extra_labels: dict[str, str] | None = None) -> Manifest:
    """Metadata of a child: our labels, and an owner reference so that it goes with the parent without a finalizer."""
    parent = resource["metadata"]
    return {
        "name": names.child_name(parent["name"]),
        "namespace": parent["namespace"],
        "labels": (extra_labels or {}) | names.own_labels(parent["name"]),
        "annotations": {names.PARENT_ANNOTATION: parent["name"]},
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": parent["name"],
                "uid": parent["uid"],
                "controller": True,
            }
        ],
    }


def sealed(manifest: Manifest) -> Manifest:
    """The manifest with the hash of itself as an annotation: a field we stop setting changes it, and so is noticed."""
    text = json.dumps(manifest, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    head = manifest["metadata"]
    return manifest | {"metadata": head | {"annotations": head["annotations"] | {names.RENDERED_ANNOTATION: digest}}}
