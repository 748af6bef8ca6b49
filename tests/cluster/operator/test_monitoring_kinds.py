"""A cluster without the Prometheus Operator's kinds, which then get installed: the operator goes on, says so, and acts.

The definitions are the node's own and everybody's: only the long run takes them away.
"""

from __future__ import annotations

import pytest

from cluster_api import administrator, has_condition
from cluster_tools import Kubectl, wait_for
from node import binaries, config
from operator_process import OperatorProcess, Services

GROUP = "monitoring.coreos.com"
CHILDREN = ("podmonitor", "prometheusrule")


@pytest.mark.soak
@pytest.mark.alone
def test_the_kinds_are_used_when_they_appear(
    cluster: config.Settings, kubectl: Kubectl, services: Services, operator: OperatorProcess
) -> None:
    files = [path for path in binaries.monitoring_crds(cluster) if "servicemonitors" not in path.name]
    assert len(files) == len(CHILDREN)
    try:
        for path in files:
            kubectl("delete", "-f", str(path))
        # One that has not looked yet: an operator asks which kinds there are once a minute.
        operator.kill()
        operator.start()
        wait_for(operator.leads, "the lead")
        services.apply("unwatched")
        services.wait_ready("unwatched")
        told = services.wait_condition("unwatched", "MonitoringConfigured", "PodMonitorKindMissing")
        assert told["status"] == "False"
        assert "Prometheus Operator" in told["message"]
        assert services.condition("unwatched", "Ready")["status"] == "True"
    finally:
        for path in files:
            kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
            _wait_served(path.stem.partition("_")[2])
    services.wait_condition("unwatched", "MonitoringConfigured", "PodMonitorApplied")
    for kind in CHILDREN:
        assert services.get(kind, "unwatched"), kind
    assert not operator.unexpected_lines()


def _wait_served(plural: str) -> None:
    where = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{GROUP}"
    wait_for(lambda: has_condition(administrator().get(where), "Established"), f"{plural} are served")
