"""How the pods are reached."""

from __future__ import annotations

from octavo_operator import names
from octavo_operator.manifests.child import SERVICE, Manifest, metadata


def service(resource: Manifest) -> Manifest:
    """The Service of the API port; the management port stays reachable by pod address only."""
    port = {"name": names.API_PORT_NAME, "port": names.API_PORT, "targetPort": names.API_PORT_NAME, "protocol": "TCP"}
    return {
        "apiVersion": SERVICE[0],
        "kind": SERVICE[1],
        "metadata": metadata(resource),
        "spec": {"type": "ClusterIP", "selector": names.selector_labels(resource["metadata"]["name"]), "ports": [port]},
    }


def url(resource: Manifest) -> str:
    """Where clients inside the cluster find the API."""
    head = resource["metadata"]
    return f"http://{names.child_name(head['name'])}.{head['namespace']}.svc:{names.API_PORT}"
