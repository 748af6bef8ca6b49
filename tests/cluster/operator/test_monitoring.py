"""What a service gives a Prometheus on a real API server: a monitor, its rules, and figures of the operator's own."""

from __future__ import annotations

import re

from cluster_tools import wait_for
from operator_process import OperatorProcess, Services

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
    wait_for(lambda: not any(services.get(kind, "watched") for kind in KINDS), 60, "the end of its children")


def test_alerts_that_are_not_wanted_go_and_come_back(services: Services) -> None:
    services.apply("silent", monitoring={"alerts": False})
    services.wait_ready("silent")
    assert expressions(services, "silent") == []
    services.apply("silent")
    wait_for(lambda: expressions(services, "silent"), 30, "the alerts")
    services.apply("silent", monitoring={"alerts": False})
    wait_for(lambda: not expressions(services, "silent"), 30, "the end of the alerts")


def test_the_operator_exports_what_status_says(services: Services, operator: OperatorProcess) -> None:
    services.apply("counted")
    services.wait_ready("counted")
    whose = f'inferenceservice="counted",namespace="{services.namespace}"'

    def said() -> bool:
        text = operator.metrics()
        replicas = [f'service_replicas{{{whose},state="{state}"}} 1.0' for state in ("desired", "present", "ready")]
        ready = f'service_condition{{{whose},reason="Serving",status="True",type="Ready"}} 1.0'
        return all(f"octavo_operator_{series}\n" in text for series in (*replicas, ready))

    wait_for(said, 30, "the service's series")
    services.delete("counted")
    wait_for(lambda: not re.search(r'inferenceservice="counted"', operator.metrics()), 60, "the end of its series")
