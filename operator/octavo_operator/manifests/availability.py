"""What keeps replicas when nodes are drained."""

from __future__ import annotations

from octavo_operator import names
from octavo_operator.manifests.child import DISRUPTION_BUDGET, Manifest, metadata


def disruption_budget(resource: Manifest) -> Manifest:
    """One replica at a time may be evicted; one that does not serve anyway may always be."""
    return {
        "apiVersion": DISRUPTION_BUDGET[0],
        "kind": DISRUPTION_BUDGET[1],
        "metadata": metadata(resource),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector_labels(resource["metadata"]["name"])},
        },
    }
