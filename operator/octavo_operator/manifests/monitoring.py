"""Spec -> the objects that Prometheus Operator reads."""

from __future__ import annotations

from octavo_operator import names
from octavo_operator.manifests.alerting import Scope
from octavo_operator.manifests.alerts import Objectives, service_alerts
from octavo_operator.manifests.child import POD_MONITOR, PROMETHEUS_RULE, Manifest, metadata
from octavo_operator.spec import Monitoring, Spec

_POD_LABEL = "__meta_kubernetes_pod_label_" + names.SERVICE_LABEL.replace(".", "_").replace("/", "_")
_ENDPOINT = {
    "port": names.MANAGEMENT_PORT_NAME,
    "path": "/metrics",
    "interval": "15s",
    "relabelings": [{"action": "replace", "sourceLabels": [_POD_LABEL], "targetLabel": "inferenceservice"}],
}


def pod_monitor(resource: Manifest, spec: Spec) -> Manifest:
    """Scrapes every replica's management port; the service's name becomes the label `inferenceservice`.

    Unwanted, it has no endpoint and so nothing to scrape: as with rules, nothing needs to be deleted.
    """
    return {
        "apiVersion": POD_MONITOR[0],
        "kind": POD_MONITOR[1],
        "metadata": metadata(resource, extra_labels=spec.monitoring.labels),
        "spec": {
            "selector": {"matchLabels": names.selector_labels(resource["metadata"]["name"])},
            "podMetricsEndpoints": [_ENDPOINT] if spec.monitoring.pod_monitor else [],
        },
    }


def prometheus_rule(resource: Manifest, spec: Spec) -> Manifest:
    """The service's alerts. Unwanted, they leave an empty group: nothing needs to be deleted, and no right to do it.

    A spec without any group is one that server-side apply cannot make of one with groups.
    """
    return {
        "apiVersion": PROMETHEUS_RULE[0],
        "kind": PROMETHEUS_RULE[1],
        "metadata": metadata(resource, extra_labels=spec.monitoring.labels),
        "spec": {"groups": [_group(resource, spec.monitoring)]},
    }


def _group(resource: Manifest, wish: Monitoring) -> Manifest:
    head = resource["metadata"]
    scope = Scope.service(head["namespace"], head["name"])
    alerts = service_alerts(scope, _objectives(wish)) if wish.alerts else []
    return {"name": "octavo-service", "rules": [alert.rendered() for alert in alerts]}


def _objectives(wish: Monitoring) -> Objectives:
    usual = Objectives()
    return Objectives(
        first_token=wish.time_to_first_token_seconds or usual.first_token,
        inter_token=wish.inter_token_latency_seconds or usual.inter_token,
    )
