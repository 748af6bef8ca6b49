"""Alerts about replicas, from real trouble of real pods to a real Prometheus: pending, firing, and over when it is.

The rules are those that the operator writes, with minutes that last a second; the jobs are those of docs/GRAFANA.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import fake_engine
import prometheus_server
from boards import rules
from cluster_tools import Kubectl, wait_for
from node import config
from operator_process import OperatorProcess, Services
from prometheus_server import Prometheus, documented_jobs, hastened, static_job, wait_state

NO_REPLICA, MISSING, LIMITED = "OctavoNoReadyReplica", "OctavoMetricsMissing", "OctavoScalingLimited"
RESTARTS = "OctavoRestartLoop"
SLOWLY = 3  # seconds that a minute lasts where the kubelet's own patience is part of the story


def watching(
    settings: config.Settings, shared: tuple[Services, OperatorProcess], minute: int
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Jobs over the namespace's pods and the operator's process, and the rules."""
    services, operator = shared
    told = static_job("octavo-operator", f"127.0.0.1:{operator.port}", pod="octavo-1") | {"honor_labels": True}
    jobs = [*documented_jobs(settings, [services.namespace], "octavo"), told]
    return jobs, hastened([group for group in rules.everything() if group["name"] == "octavo-service"], minute)


@pytest.fixture(scope="module")
def prometheus(cluster: config.Settings, shared: tuple[Services, OperatorProcess]) -> Iterator[Prometheus]:
    if cluster.kubeconfig is not None:
        pytest.skip("discovery asks with the embedded node's own certificate")
    with prometheus_server.prometheus(cluster, *watching(cluster, shared, minute=1)) as server:
        yield server


def test_trouble_of_three_services_fires_their_alerts_and_no_other(
    kubectl: Kubectl, services: Services, prometheus: Prometheus
) -> None:
    """One never serves, one is not to be seen, one may not grow; a fourth is well, and one that is off is silent."""
    one = {"minReplicas": 1, "maxReplicas": 1}
    services.apply_all(
        {
            "well": {},
            "off": {"replicas": 0},
            "never": {"model": {"source": "file:///never"}},
            "unseen": {},
            "outgrown": {"autoscaling": one},
        }
    )
    for name in ("well", "unseen", "outgrown"):
        services.wait_ready(name)
    seen = {f'octavo_requests_running{{inferenceservice="{name}"}}' for name in ("well", "unseen", "outgrown")}
    wait_for(lambda: all(prometheus.query(query) for query in seen), "the pods in Prometheus")

    (unseen,), (outgrown,) = services.pods("unseen"), services.pods("outgrown")
    fake_engine.hide_metrics(kubectl, services.namespace, unseen)
    fake_engine.set_load(kubectl, services.namespace, outgrown, fake_engine.busy(waiting=60))
    troubles = {(NO_REPLICA, "never"), (MISSING, "unseen"), (LIMITED, "outgrown")}
    wait_for(lambda: troubles <= prometheus.alerts().keys(), "what is pending")
    for alert, name in troubles:
        wait_state(prometheus, alert, name, "firing")

    def firing() -> set[tuple[str, str]]:
        return {key for key, state in prometheus.alerts().items() if state == "firing"}

    # A busy machine may answer no scrape for some of these seconds, which is a trouble of its own, and passes.
    wait_for(lambda: firing() == troubles, f"no other alert; now: {firing()}")

    fake_engine.hide_metrics(kubectl, services.namespace, unseen, hidden=False)
    fake_engine.set_load(kubectl, services.namespace, outgrown, fake_engine.IDLE)
    services.apply("never")
    for alert, name in troubles:
        wait_state(prometheus, alert, name, None)
    wait_for(lambda: not prometheus.alerts(), f"silence; now: {prometheus.alerts()}")


@pytest.mark.soak
def test_a_container_that_ends_again_and_again_is_a_restart_loop(
    cluster: config.Settings, services: Services, operator: OperatorProcess
) -> None:
    """The kubelet waits longer from time to time: three restarts take it a minute."""
    with prometheus_server.prometheus(cluster, *watching(cluster, (services, operator), SLOWLY)) as server:
        services.apply("crashing", model={"source": "file:///crash"})
        wait_state(server, RESTARTS, "crashing", "firing")
        assert (NO_REPLICA, "crashing") in server.alerts()
        services.apply("crashing")
        wait_state(server, RESTARTS, "crashing", None)
        wait_state(server, NO_REPLICA, "crashing", None)


def test_the_rules_that_fire_here_are_those_that_services_get(services: Services) -> None:
    """Word for word, but for the service that they name: a story about other rules would say nothing."""
    services.apply("ruled")
    wait_for(lambda: services.get("prometheusrule", "ruled"), "the service's rules")
    whose = f'{{namespace="{services.namespace}",inferenceservice="ruled"'
    (own,) = (services.get("prometheusrule", "ruled") or {})["spec"]["groups"]
    (shared,) = (group for group in rules.everything() if group["name"] == "octavo-service")
    assert [rule["alert"] for rule in own["rules"]] == [rule["alert"] for rule in shared["rules"]]
    assert len(own["rules"]) >= 12
    for mine, theirs in zip(own["rules"], shared["rules"], strict=True):
        bare = mine["expr"].replace(f"{whose},", "{").replace(f"{whose}}}", "")
        assert bare == theirs["expr"], json.dumps(mine["alert"])
        assert mine.get("for") == theirs.get("for")
