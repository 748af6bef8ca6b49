"""What the operator keeps about a service in the cluster, where no restart can lose it."""

from __future__ import annotations

from octavo_operator.manifests.child import CONFIG_MAP, Manifest, metadata, name_of


def revisions_map(resource: Manifest, data: dict[str, str]) -> Manifest:
    """The ConfigMap of the service's revisions."""
    return {
        "apiVersion": CONFIG_MAP[0],
        "kind": CONFIG_MAP[1],
        "metadata": metadata(resource) | {"name": name_of(CONFIG_MAP, resource["metadata"]["name"])},
        "data": data,
    }
