"""Spec -> the objects that Prometheus Operator reads."""

from __future__ import annotations

from octavo_operator import names
from octavo_operator.manifests.child import POD_MONITOR, Manifest, metadata
from octavo_operator.spec import Spec

_POD_LABEL = "__meta_kubernetes_pod_label_" + names.SERVICE_LABEL.replace(".", "_").replace("/", "_")


def pod_monitor(resource: Manifest, spec: Spec) -> Manifest:
    """Scrapes every replica's management port; the service's name becomes the label `inferenceservice`."""
    return {
        "apiVersion": POD_MONITOR[0],
        "kind": POD_MONITOR[1],
        "metadata": metadata(resource, extra_labels=spec.monitoring.labels),
        "spec": {
            "selector": {"matchLabels": names.selector_labels(resource["metadata"]["name"])},
            "podMetricsEndpoints": [
                {
                    "port": names.MANAGEMENT_PORT_NAME,
                    "path": "/metrics",
                    "interval": "15s",
                    "relabelings": [
                        {"action": "replace", "sourceLabels": [_POD_LABEL], "targetLabel": "inferenceservice"}
                    ],
                }
            ],
        },
    }
