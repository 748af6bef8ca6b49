"""The real Prometheus Operator finds replicas and operator, and loads our rules, by the labels that a user sets.

It makes a Prometheus on the node that selects as kube-prometheus-stack's does. The operator is the chart's, in a pod.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import chart_samples
import prometheus_operator
import releases
from cluster_tools import Kubectl, create, wait_for
from node import config, images
from operator_process import Services
from prometheus_server import Prometheus

RELEASE = "watched-operator"
MONITORING: dict[str, Any] = {
    "monitoring.enabled": True,
    "monitoring.kind": "ServiceMonitor",
    "monitoring.interval": "5s",
    "monitoring.labels": prometheus_operator.RELEASE,
    "monitoring.rules.enabled": True,
}


@pytest.fixture(scope="module")
def services(kubectl: Kubectl, cluster: config.Settings, definition: None, engine_image: str) -> Iterator[Services]:
    """A namespace with the chart's operator and two services: only one of them has the label."""
    if cluster.kubeconfig is not None:
        pytest.skip("images are brought into the embedded node only")
    name = f"watched-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    create(kubectl, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    repository, _, tag = images.load(cluster, images.IMAGES["operator"]).rpartition(":")
    values = {"image": {"repository": repository, "tag": tag}, "engineImage": engine_image} | MONITORING
    flags = chart_samples.flags(values)
    releases.helm("upgrade", "--install", RELEASE, releases.OPERATOR_CHART, "--namespace", name, *flags)
    made = Services(kubectl, name)
    made.apply("chosen", monitoring={"labels": prometheus_operator.RELEASE})
    made.apply("other")
    yield made
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def prometheus(kubectl: Kubectl, cluster: config.Settings, services: Services) -> Iterator[Prometheus]:
    with prometheus_operator.prometheus_operator(kubectl, cluster, services.namespace) as made:
        services.wait_ready("chosen")
        services.wait_ready("other")
        yield made.wait_serving()


def test_the_labelled_monitors_are_found_and_their_targets_are_up(services: Services, prometheus: Prometheus) -> None:
    """And no other: the second service's monitor has no such label."""
    replicas = f"podMonitor/{services.namespace}/chosen/0"
    wanted = {replicas, f"serviceMonitor/{services.namespace}/{RELEASE}/0"}

    def all_up() -> bool:
        found = prometheus.targets()
        return found.keys() == wanted and all(item["health"] == "up" for each in found.values() for item in each)

    wait_for(all_up, f"both up; now: {prometheus.targets()}", interval=0.5)
    (target,) = prometheus.targets()[replicas]
    (pod,) = services.pods("chosen")
    labels = target["labels"]
    assert (labels["namespace"], labels["pod"], labels["inferenceservice"]) == (services.namespace, pod, "chosen")


def test_the_rules_are_loaded_are_well_and_record(services: Services, prometheus: Prometheus) -> None:
    """The service's own and the chart's; what they record of the replica, and the operator's series, have values."""
    groups = {"octavo-recorded", "octavo-operator", "octavo-service"}
    wait_for(lambda: prometheus.rules().keys() == groups, f"our rules; now: {list(prometheus.rules())}", interval=0.5)

    def health() -> set[str]:
        return {rule["health"] for rules in prometheus.rules().values() for rule in rules}

    wait_for(lambda: health() == {"ok"}, f"rules that were evaluated; now: {health()}", interval=0.5)
    whose = f'namespace="{services.namespace}",inferenceservice="chosen"'
    recorded = f"inferenceservice:octavo_requests_running:sum{{{whose}}}"
    wait_for(lambda: prometheus.query(recorded), recorded, interval=0.5)
    for series in (f'octavo_operator_service_replicas{{{whose},state="ready"}}', "octavo_operator_leading"):
        wait_for(lambda series=series: prometheus.value(f"max({series})") == 1, series, interval=0.5)


def test_the_condition_says_how_it_is_found(services: Services, prometheus: Prometheus) -> None:
    assert services.condition("chosen", "MonitoringConfigured")["reason"] == "PodMonitorApplied"
