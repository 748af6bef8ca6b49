"""The API server away, the token exchanged, the clock wrong, two operators of which one is cut off."""

from __future__ import annotations

import re
import subprocess
import time
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from cluster_tools import Kubectl, create, wait_for
from fault_proxy import Record
from fault_rules import Reset, Rule, Silence
from node import config
from operator_process import RELEASE, OperatorProcess
from patience import PATIENCE_SECONDS
from stage import MakeOperator, Stage

DEPLOYMENT = ("apps/v1", "deployments")
LEASE_SECONDS = 15  # also a busy machine renews it in time
LOST_LEASE = r"CRITICAL octavo_operator.process: .*: exiting"
# kopf's words about connections that break, and about tokens that end.
KOPF = r"kopf|Traceback"


def supervised(stage: Stage, until: Any, **flags: object) -> int:
    """Starts the operator again whenever it exits, as the kubelet does; returns how often, once `until` holds."""
    deadline, exits = time.monotonic() + PATIENCE_SECONDS, 0
    while not until():
        assert time.monotonic() < deadline, stage.operator.log()[-3000:]
        if not stage.operator.running:
            exits += 1
            stage.operator.start(**flags)  # type: ignore[arg-type]
        time.sleep(0.1)
    return exits


def passed(end: float) -> bool:
    """Whether it is later than a monotonic time."""
    return time.monotonic() > end


def test_an_outage_of_the_api_server(stage: Stage) -> None:
    """The operator gives its lease up once, waits without crashing, and catches up."""
    stage.start(lease_seconds=15)
    stage.apply("changes")
    stage.apply("goes")
    stage.wait_settled("changes", "goes")
    began = time.monotonic()
    with stage.proxy.failing(Rule(Reset(), leases=True)):
        stage.apply("changes", allowFrom=[{"podSelector": {}}])
        stage.delete("goes")
        stage.apply("comes")
        stage.api.delete(f"/apis/apps/v1/namespaces/{stage.namespace}/deployments/changes")
        wait_for(lambda: not stage.operator.running, "the end of one that has no lease any more")
        again = time.monotonic()
        stage.operator.start(lease_seconds=30, api_timeout_seconds=2)  # as the kubelet does
        wait_for(lambda: len(tries_to_lead(stage, again)) > 3, "tries to take the lease")
        assert stage.operator.running, "without an API server it waits"
        assert len(stage.proxy.calls(began)) < 200
        assert stage.proxy.calls(again) == [], "without a lease it does not act"
    stage.wait_settled("changes", "comes")
    stage.apply("twin", allowFrom=[{"podSelector": {}}])
    stage.wait_settled("twin")
    stage.wait_like("changes", stage.children("twin"))
    assert stage.operator.running
    assert stage.operator.unexpected_lines(LOST_LEASE, KOPF) == []


def tries_to_lead(stage: Stage, since: float) -> list[Record]:
    """Calls about the lease that came after a monotonic time."""
    return [item for item in list(stage.proxy.records) if item.at >= since and item.call.renews_the_lease]


def test_a_token_that_is_exchanged_and_revoked(kubectl: Kubectl, stage: Stage) -> None:
    """As the kubelet does it: another token in the same file, and the old one ends."""
    where = ("-n", stage.namespace)

    def token_bound_to(secret: str) -> str:
        head = {"name": secret, "namespace": stage.namespace}
        create(kubectl, {"apiVersion": "v1", "kind": "Secret", "metadata": head})
        bound = ("--bound-object-kind=Secret", f"--bound-object-name={secret}")
        return kubectl("create", "token", RELEASE, *where, *bound).strip()

    stage.operator.use_token(token_bound_to("first"))
    stage.start()
    stage.apply("before")
    stage.wait_settled("before")
    stage.operator.use_token(token_bound_to("second"))
    kubectl("delete", "secret", "first", *where)
    began = time.monotonic()
    # Tokens are believed for a few seconds after they end.
    wait_for(lambda: any(item.status == 401 for item in stage.proxy.records if item.at > began), "a refused token")
    stage.apply("after", allowFrom=[{"podSelector": {}}])
    stage.apply("before", allowFrom=[{"podSelector": {}}])
    stage.wait_settled("after", "before")
    stage.wait_like("after", stage.children("before"))
    assert stage.operator.running
    assert stage.operator.unexpected_lines(KOPF) == []


def test_an_operator_that_is_cut_off_stops_before_another_acts(stage: Stage, make_operator: MakeOperator) -> None:
    # A busy machine does not keep either for as long as lies between the end of the one and the other's begin: 10 s.
    flags: dict[str, object] = {"lease_seconds": 30, "api_timeout_seconds": 2}
    stage.start("first", **flags)
    second = make_operator(stage.namespace).start("second", **flags)
    stage.apply("one")
    stage.wait_settled("one")
    assert not second.leads()
    with stage.proxy.failing(Rule(Silence(), leases=True)):
        began = time.monotonic()
        stage.apply("two")
        wait_for(lambda: not stage.operator.running, "the end of the one that is cut off")
        wait_for(second.leads, "the take-over")
        stage.wait_settled("two")
    assert stage.proxy.writes(began) == []
    assert logged_at(LOST_LEASE, stage.operator) < logged_at("holding the lease", second), "two would have acted"
    assert stage.operator.unexpected_lines(LOST_LEASE, KOPF) == []
    assert second.unexpected_lines() == []


def logged_at(pattern: str, operator: OperatorProcess) -> datetime:
    """When the one line that holds this was logged, by this machine's clock."""
    (line,) = (line for line in operator.log().splitlines() if re.search(pattern, line))
    return datetime.strptime(line[:23], "%Y-%m-%d %H:%M:%S,%f")


def writes_of(operator: OperatorProcess) -> float:
    """Writes that an operator has made, leases aside, by its own count."""
    pattern = r'octavo_operator_api_requests_total\{code="20\d",resource="(?!leases)[^"]*",verb="(?!GET)[A-Z]+"\} (\S+)'
    return sum(float(count) for count in re.findall(pattern, operator.metrics()))


def test_two_operators_with_clocks_that_are_wrong(stage: Stage, make_operator: MakeOperator) -> None:
    """Ten minutes ahead and ten behind: the lease stays where it is, and the standby writes nothing."""
    skewed = str(config.CHECKOUT / "tests" / "support" / "skewed")
    others = [stage.operator, make_operator(stage.namespace)]
    for operator, skew in zip(others, ("600", "-600"), strict=True):
        path = f"{skewed}:{operator.environment['PYTHONPATH']}"
        operator.environment |= {"PYTHONPATH": path, "CLOCK_SKEW_SECONDS": skew}
    ahead, behind = others
    stage.start("ahead", lease_seconds=LEASE_SECONDS)
    behind.start("behind", lease_seconds=LEASE_SECONDS)
    wait_for(behind.alive, "the standby's start")
    began = time.monotonic()
    stage.apply("one")
    stage.wait_settled("one")
    wait_for(lambda: time.monotonic() - began > 2 * LEASE_SECONDS + 1, "more than twice the lease's length")
    assert not behind.leads()
    assert writes_of(behind) == 0
    settled = writes_of(ahead)
    stage.apply("two")
    stage.wait_settled("two")
    assert writes_of(ahead) > settled
    ahead.kill()
    wait_for(behind.leads, "the take-over")
    stage.apply("three")
    stage.wait_settled("three")
    stage.wait_like("three", stage.children("one"))
    for operator in others:
        assert operator.unexpected_lines() == []


@pytest.mark.soak
@pytest.mark.skipif(
    config.Settings.from_environment().kubeconfig is not None, reason="the API server of another cluster is not ours"
)
def test_the_api_server_is_really_stopped(stage: Stage, cluster: config.Settings) -> None:
    """Pods go on serving without it; what was asked for meanwhile is done afterwards."""
    flags: dict[str, object] = {"lease_seconds": 10, "api_timeout_seconds": 2}
    stage.start(**flags)
    stage.apply("serves", replicas=1)
    wait_for(lambda: stage.condition("serves", "Ready").get("status") == "True", "a replica that serves")
    pods = stage.api.items(f"/api/v1/namespaces/{stage.namespace}/pods", "octavo.dev/service=serves")
    for component in ("kube-apiserver", "etcd"):
        subprocess.run([config.HACK / "cluster", "stop", component], check=True, timeout=PATIENCE_SECONDS)
        end = time.monotonic() + 60
        supervised(stage, partial(passed, end), **flags)
        subprocess.run([config.HACK / "cluster", "up"], check=True, timeout=PATIENCE_SECONDS)
        stage.api.close()
        stage.apply("serves", replicas=1, allowFrom=[{"podSelector": {"matchLabels": {"after": component}}}])
        supervised(stage, partial(stage.settled, "serves"), **flags)
    after = stage.api.items(f"/api/v1/namespaces/{stage.namespace}/pods", "octavo.dev/service=serves")
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in pods]
    assert stage.child(DEPLOYMENT, "serves")["metadata"]["generation"] == 1


@pytest.mark.soak
@pytest.mark.skipif(
    config.Settings.from_environment().kubeconfig is not None, reason="the kubelet of another cluster is not ours"
)
def test_a_node_that_falls_silent_is_told_and_its_return_ends_it(stage: Stage) -> None:
    """Its pods go on and nobody knows; when it speaks again they are the same ones."""
    stage.start()
    stage.apply("lonely", replicas=1)
    wait_for(lambda: stage.condition("lonely", "Ready").get("status") == "True", "a replica that serves")
    path = f"/api/v1/namespaces/{stage.namespace}/pods"
    before = [pod["metadata"]["uid"] for pod in stage.api.items(path, "octavo.dev/service=lonely")]
    subprocess.run([config.HACK / "cluster", "stop", "kubelet"], check=True, timeout=PATIENCE_SECONDS)
    try:
        # The control plane waits for most of a minute before it believes it.
        wait_for(lambda: stage.condition("lonely", "Ready").get("reason") == "NodeNotReady", "the cause")
        assert f"node {config.NODE_NAME} does not answer" in stage.condition("lonely", "Ready")["message"]
    finally:
        subprocess.run([config.HACK / "cluster", "up"], check=True, timeout=PATIENCE_SECONDS)
    wait_for(lambda: stage.condition("lonely", "Ready").get("status") == "True", "its return")
    assert [pod["metadata"]["uid"] for pod in stage.api.items(path, "octavo.dev/service=lonely")] == before
    assert stage.operator.unexpected_lines() == []
