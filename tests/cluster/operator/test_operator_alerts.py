"""The alerts about the operator itself, from real trouble with its API server to a real Prometheus: firing, and over.

The rules are those of dashboards/rules.yaml, with minutes that last a second. A proxy between operator and API server
makes the trouble.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import prometheus_server
from boards import rules
from cluster_tools import wait_for
from fault_rules import Answer, Delay, Garbage, Rule
from node import config
from prometheus_server import Prometheus, hastened, static_job, wait_state
from stage import Stage

pytestmark = pytest.mark.soak

MISSING, FAILING = "OctavoOperatorMissing", "OctavoReconcilesFail"
BUG, BEHIND = "OctavoOperatorBug", "OctavoOperatorBehind"
LEASE_SECONDS = 15  # another takes over, but not because a busy machine lets this one renew it late
NOBODYS = ""  # these alerts are about no service


@dataclass(frozen=True)
class Watched:
    """An operator behind a fault proxy, and who scrapes it."""

    stage: Stage
    port: int
    prometheus: Prometheus

    def start(self, **flags: object) -> None:
        """Where Prometheus looks for it."""
        self.stage.start(health_port=self.port, lease_seconds=LEASE_SECONDS, **flags)
        wait_for(lambda: self.prometheus.value("octavo_operator_leading") == 1, "a scrape of the one that leads")

    def apply(self, *names: str) -> None:
        """Services of no replica."""
        for name in names:
            self.stage.apply(name)

    def fires(self, alert: str) -> None:
        """This alert, and no other."""
        wait_state(self.prometheus, alert, NOBODYS, "firing")
        assert [key for key, state in self.prometheus.alerts().items() if state == "firing"] == [(alert, NOBODYS)]

    def was_pending(self, alert: str) -> bool:
        """Prometheus remembers what a poll may miss."""
        return bool(self.prometheus.query(f'last_over_time(ALERTS{{alertname="{alert}",alertstate="pending"}}[10m])'))

    def ends(self, alert: str) -> None:
        """And nothing else is left of the trouble."""
        wait_state(self.prometheus, alert, NOBODYS, None)
        self.silent()

    def silent(self) -> None:
        """Waits until no alert is pending or firing; before its first scrapes Prometheus misses the operator."""
        wait_for(lambda: not self.prometheus.alerts(), f"silence; now: {self.prometheus.alerts()}")


@pytest.fixture
def watched(cluster: config.Settings, stage: Stage) -> Iterator[Watched]:
    stage.start(lease_seconds=LEASE_SECONDS)
    port = stage.operator.port
    job = static_job("octavo-operator", f"127.0.0.1:{port}", pod="octavo-1") | {"honor_labels": True}
    groups = hastened([group for group in rules.once() if group["name"] == "octavo-operator"])
    with prometheus_server.prometheus(cluster, [job], groups) as server:
        made = Watched(stage, port, server)
        wait_for(lambda: server.value("octavo_operator_leading") == 1, "the first scrape")
        made.apply("fine")
        stage.wait_settled("fine")
        made.silent()
        yield made


def test_an_operator_that_is_gone_is_missed_until_another_leads(watched: Watched) -> None:
    watched.stage.operator.kill()
    watched.fires(MISSING)
    assert watched.was_pending(MISSING)
    watched.start(identity="next")
    watched.ends(MISSING)


def test_writes_that_are_refused_are_failing_looks_until_they_are_allowed(watched: Watched) -> None:
    names = [f"refused-{number}" for number in range(4)]
    refused = Rule(Answer(403), verbs=["patch"], resources=["deployments"], about="refused-")
    with watched.stage.proxy.failing(refused):
        watched.apply(*names)
        watched.fires(FAILING)
        assert watched.was_pending(FAILING)
        assert {watched.stage.condition(name, "Stalled").get("reason") for name in names} == {"OperatorForbidden"}
    watched.ends(FAILING)
    watched.stage.wait_settled(*names)


def test_a_single_fault_of_its_own_is_told(watched: Watched) -> None:
    """The API server answers once with something that is no object of Kubernetes; the next look does all there is."""
    odd = Garbage(b'{"metadata": "uid, resourceVersion"}')
    with watched.stage.proxy.failing(Rule(odd, verbs=["patch"], resources=["deployments"], times=1)):
        watched.apply("odd")
        watched.fires(BUG)
    watched.stage.wait_settled("odd")
    assert watched.prometheus.value('octavo_operator_reconciles_total{result="bug"}') == 1
    watched.ends(BUG)
    assert len(watched.stage.operator.unexpected_lines()) == 2  # the error and its trace
    assert watched.stage.operator.unexpected_lines("unexpected error", "Traceback") == []


def test_a_slow_api_server_and_one_worker_are_behind_until_it_is_fast(watched: Watched) -> None:
    watched.stage.operator.stop()
    watched.start(workers=1, identity="alone")
    names = [f"late-{number}" for number in range(24)]
    with watched.stage.proxy.failing(Rule(Delay(0.4), about="late-")):
        watched.apply(*names)
        watched.fires(BEHIND)
        assert watched.was_pending(BEHIND)
    watched.ends(BEHIND)
    watched.stage.wait_settled(*names)
