"""What a service gives a Prometheus on a real API server: a monitor, its rules, and figures of the operator's own."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import pytest
import yaml

import prometheus_server
from cluster_tools import wait_for
from node import config
from octavo_engine.explain.fetching import ManagementPort, NoAnswer
from octavo_engine.explain.replicas import Replicas
from operator_process import OperatorProcess, Services
from prometheus_server import DOCUMENT, documented_jobs

KINDS = ("podmonitor", "prometheusrule")
OBJECTIVE = 'le=~"1[.]5"'


def expressions(services: Services, name: str) -> list[str]:
    """The alerts that the service's rule holds."""
    rule = services.get("prometheusrule", name)
    assert rule is not None
    return [alert["expr"] for group in rule["spec"]["groups"] for alert in group.get("rules") or ()]


def test_a_service_has_a_monitor_and_rules_for_as_long_as_it_lives(services: Services) -> None:
    services.apply("watched", monitoring={"labels": {"release": "p"}, "timeToFirstTokenSeconds": 1.2})
    document = services.wait_ready("watched")
    for kind in KINDS:
        child = services.get(kind, "watched")
        assert child is not None, kind
        assert child["metadata"]["labels"]["release"] == "p"
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == document["metadata"]["uid"]
    told = expressions(services, "watched")
    assert len(told) >= 12
    assert all(f'namespace="{services.namespace}",inferenceservice="watched"' in expr for expr in told)
    assert any(OBJECTIVE in expr for expr in told)
    assert services.condition("watched", "MonitoringConfigured")["status"] == "True"
    services.delete("watched")
    wait_for(lambda: not any(services.get(kind, "watched") for kind in KINDS), "the end of its children")


def test_alerts_that_are_not_wanted_go_and_come_back(services: Services) -> None:
    services.apply("silent", monitoring={"alerts": False})
    services.wait_ready("silent")
    assert expressions(services, "silent") == []
    services.apply("silent")
    wait_for(lambda: expressions(services, "silent"), "the alerts")
    services.apply("silent", monitoring={"alerts": False})
    wait_for(lambda: not expressions(services, "silent"), "the end of the alerts")


def documented_spec() -> dict[str, object]:
    """What docs/GRAFANA.md says to write for a Prometheus that goes by annotations."""
    blocks = re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = (spec for spec in (yaml.safe_load(block).get("spec", {}) for block in blocks) if "template" in spec)
    assert isinstance(found, dict)
    return found


def test_annotations_are_enough_where_no_pod_monitor_is_wanted(cluster: config.Settings, services: Services) -> None:
    """Found by them, once, under the labels that boards ask for; and nothing is left that would find it again."""
    if cluster.kubeconfig is not None:
        pytest.skip("discovery asks with the embedded node's own certificate")
    services.apply("annotated", **documented_spec())
    services.apply("plain")
    services.wait_ready("annotated")
    services.wait_ready("plain")
    jobs = documented_jobs(cluster, [services.namespace], "kubernetes-pods")
    with prometheus_server.prometheus(cluster, jobs) as prometheus:
        found = wait_for(lambda: prometheus.query("octavo_requests_running"), "a first scrape")
        (target,) = prometheus.targets()["kubernetes-pods"]
    (pod,) = services.pods("annotated")
    assert [sample["metric"]["pod"] for sample in found] == [pod]
    assert target["labels"] == {
        "job": "kubernetes-pods",
        "instance": target["labels"]["instance"],
        "namespace": services.namespace,
        "pod": pod,
        "inferenceservice": "annotated",
    }
    monitors = {name: services.get("podmonitor", name) or {} for name in ("annotated", "plain")}
    assert not monitors["annotated"]["spec"].get("podMetricsEndpoints")
    assert monitors["plain"]["spec"]["podMetricsEndpoints"]
    assert services.condition("annotated", "MonitoringConfigured")["reason"] == "PodMonitorNotWanted"


def test_replicas_are_reached_through_a_real_kubectl(
    cluster: config.Settings, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `octavo top --service` does it: each ready pod's management port, forwarded, and let go of afterwards."""
    monkeypatch.setenv("PATH", str(config.HACK), prepend=os.pathsep)
    services.apply("reached", replicas=2)
    services.wait_ready("reached", replicas=2)
    options = (f"--kubeconfig={cluster.admin_kubeconfig}", f"--namespace={services.namespace}")
    with Replicas("reached", options) as replicas:

        def each() -> Mapping[str, ManagementPort] | None:
            """On a busy machine a probe may come late, and a replica is not ready for a moment."""
            ports = replicas.refresh()
            return ports if sorted(ports) == sorted(services.pods("reached")) else None

        ports = wait_for(each, "a port of each replica")
        assert {port.json("load")["model_name"] for port in ports.values()} == {"fake"}
    with pytest.raises(NoAnswer):
        next(iter(ports.values())).json("load")


def test_the_operator_exports_what_status_says(services: Services, operator: OperatorProcess) -> None:
    services.apply("counted")
    services.wait_ready("counted")
    whose = f'inferenceservice="counted",namespace="{services.namespace}"'

    def said() -> bool:
        text = operator.metrics()
        replicas = [f'service_replicas{{{whose},state="{state}"}} 1.0' for state in ("desired", "present", "ready")]
        ready = f'service_condition{{{whose},reason="Serving",status="True",type="Ready"}} 1.0'
        return all(f"octavo_operator_{series}\n" in text for series in (*replicas, ready))

    wait_for(said, "the service's series")
    services.delete("counted")
    wait_for(lambda: not re.search(r'inferenceservice="counted"', operator.metrics()), "the end of its series")
