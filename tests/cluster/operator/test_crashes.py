"""kill -9 after every single write, and old views after a restart: the cluster ends up as if nothing had happened."""

from __future__ import annotations

import time
from typing import Any

import pytest

import children
from cluster_tools import wait_for
from fault_rules import OldAnswer, Rule, Stream
from octavo_operator.watched import WATCHED
from stage import Stage

ENOUGH_LIVES = 30
SERVICE = ("v1", "services")
DEPLOYMENT = ("apps/v1", "deployments")

# Each step changes what the one before has made: other pods (that no node takes), more of them, none of them.
PODS: dict[str, Any] = {"engine": {"maxNumSeqs": 7}, "drainSeconds": 9, "template": {"nodeSelector": {"no": "where"}}}
STEPS: tuple[dict[str, Any], ...] = (
    {"allowFrom": [{"podSelector": {"matchLabels": {"app": "web"}}}]},
    PODS,
    PODS | {"replicas": 2},
    PODS,
)


def scaled(stage: Stage, name: str) -> bool:
    """Whether the operator has done its part; pods that no node takes are not waited for."""
    service, deployment = stage.service(name), stage.child(DEPLOYMENT, name)
    status = service.get("status", {})
    current = status.get("observedGeneration") == service["metadata"]["generation"]
    return bool(current and deployment and status["desiredReplicas"] == deployment["spec"]["replicas"])


def lives_until_done(stage: Stage, name: str, wanted: dict[str, Any]) -> int:
    """Starts the operator again and again, each to die after its first write, until one finds nothing left to write."""

    def done() -> bool:
        return scaled(stage, name) and not children.differences(wanted, stage.children(name))

    for life in range(1, ENOUGH_LIVES):
        stage.kill_after(1)
        stage.start()
        wait_for(lambda: not stage.operator.running or done(), f"the end of life {life}", interval=0.05)
        if stage.operator.running:
            stage.operator.kill()
            return life
    raise AssertionError(f"{name} is not done after {ENOUGH_LIVES} lives: {stage.operator.log()[-3000:]}")


def names_with(stage: Stage, part: str) -> list[str]:
    """Names of all children in which a word occurs."""
    names = (item["metadata"]["name"] for _, item in children.live(stage.api, stage.namespace))
    return [name for name in names if part in name]


@pytest.mark.timeout(1800)  # thirty lives, each with the start of a process
def test_killed_after_every_single_write(stage: Stage) -> None:
    stage.start()
    expected = []
    for spec in STEPS:
        stage.apply("twin", **spec)
        wait_for(lambda: scaled(stage, "twin"), "what an operator makes that nobody kills")
        expected.append(stage.children("twin"))
    stage.operator.kill()

    for spec, wanted in zip(STEPS, expected, strict=True):
        stage.apply("victim", **spec)
        assert lives_until_done(stage, "victim", wanted) >= 2, "it died at least once"
        assert children.orphans(stage.api, stage.namespace) == []

    stage.proxy.mend()
    stage.delete("victim")
    began = time.monotonic()
    stage.start()
    wait_for(lambda: not names_with(stage, "victim"), "the end of the children")
    assert [call for call in stage.proxy.writes(began) if "victim" in call.target] == []
    assert stage.operator.unexpected_lines() == []


@pytest.mark.soak
@pytest.mark.parametrize("step", range(1, len(STEPS)))
def test_killed_after_the_nth_write_of_a_whole_change(stage: Stage, step: int) -> None:
    stage.start()
    stage.apply("twin", **STEPS[step - 1])
    wait_for(lambda: scaled(stage, "twin"), "the twin")
    began = time.monotonic()
    stage.apply("twin", **STEPS[step])
    wait_for(lambda: scaled(stage, "twin"), "the twin's change")
    wanted, writes = stage.children("twin"), len(stage.proxy.writes(began))
    for count in range(1, writes + 1):
        name = f"victim-{count}"
        stage.apply(name, **STEPS[step - 1])
        wait_for(lambda name=name: scaled(stage, name), name)
        stage.kill_after(count)
        stage.apply(name, **STEPS[step])
        wait_for(lambda: not stage.operator.running, "the operator's death")
        stage.proxy.mend()
        stage.start()
        stage.wait_like(name, wanted)
    assert stage.operator.unexpected_lines() == []


def lists(stage: Stage, since: float) -> set[str]:
    """Which kinds were listed after a monotonic time."""
    return {call.resource for call in stage.proxy.calls(since) if call.verb == "list"}


def test_old_lists_and_replayed_events_after_a_restart_cause_no_harm(stage: Stage) -> None:
    stage.start()
    for name in ("stays", "goes", "again"):
        stage.apply(name)
    stage.wait_settled("stays", "goes", "again")
    stage.operator.kill()
    stage.proxy.remember()
    began = time.monotonic()
    stage.start()  # its lists are what the next one will be shown
    wait_for(lambda: {watched.plural for watched in WATCHED} <= lists(stage, began), "the lists")
    stage.operator.kill()

    stage.delete("goes")
    stage.delete("again")
    wait_for(lambda: not stage.service("again"), "the end of the first of its name")
    uid = stage.apply("again")["metadata"]["uid"]
    stage.apply("stays", drainSeconds=11)
    began = time.monotonic()
    with stage.proxy.failing(Rule(OldAnswer(), verbs=["list"]), Rule(Stream("replayed"))) as (old, _):
        stage.start()
        stage.wait_settled("stays", "again")
        assert old.hits > 0
    stage.wait_settled("stays", "again")
    assert [call for call in stage.proxy.writes(began) if "/goes" in call.target] == []
    wait_for(lambda: not stage.child(DEPLOYMENT, "goes"), "the garbage collector")
    owners = stage.child(DEPLOYMENT, "again")["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == [uid]
    grace = stage.child(DEPLOYMENT, "stays")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert (
        grace == stage.child(DEPLOYMENT, "again")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] - 45 + 11
    )
    stage.wait_like("again", stage.children("again"))
    assert stage.operator.unexpected_lines() == []


def test_what_happened_while_no_event_came_is_caught_up(stage: Stage) -> None:
    """Made, changed and deleted between two looks."""
    stage.start(heartbeat_seconds=1)
    for name in ("changes", "goes"):
        stage.apply(name)
    stage.wait_settled("changes", "goes")
    with stage.proxy.failing(Rule(Stream("frozen"))):
        stage.apply("changes", drainSeconds=7)
        stage.apply("changes", drainSeconds=8)
        stage.delete("goes")
        stage.apply("comes")
        stage.apply("passes")
        stage.delete("passes")
        stage.api.delete(f"/api/v1/namespaces/{stage.namespace}/services/changes")
        # The watches stay silent: what is seen is seen by the heartbeat.
        stage.wait_settled("comes")
        wait_for(lambda: stage.child(SERVICE, "changes"), "the deleted child")
    stage.apply("twin", drainSeconds=8)
    stage.wait_settled("changes", "comes", "twin")
    stage.wait_like("changes", stage.children("twin"))
    assert not stage.service("goes")
    assert not stage.service("passes")
    wait_for(stage.operator.alive, "liveness")
    assert stage.operator.unexpected_lines() == []


def test_corrupted_bookkeeping_is_ignored_and_repaired(stage: Stage) -> None:
    stage.start()
    stage.apply("corrupt")
    stage.apply("twin")
    stage.wait_settled("corrupt", "twin")
    wanted = stage.children("twin")
    base = f"/namespaces/{stage.namespace}"
    deployment = f"/apis/apps/v1{base}/deployments/corrupt"
    service = f"/apis/octavo.dev/v1alpha1{base}/inferenceservices/corrupt"
    for edit in ({"octavo.dev/rendered": "nonsense"}, {"octavo.dev/rendered": None}):
        stage.api.merge(deployment, {"metadata": {"annotations": edit}})
        stage.wait_like("corrupt", wanted)
    stage.api.merge(deployment, {"metadata": {"labels": None}, "spec": {"replicas": 5, "minReadySeconds": 3}})
    wanted["deployments/NAME"]["spec"]["minReadySeconds"] = 3  # a field that is not ours stays
    stage.wait_like("corrupt", wanted)
    for status in ({"conditions": [], "url": "http://elsewhere", "desiredReplicas": 64}, None):
        stage.api.merge(f"{service}/status", {"status": status})
        wait_for(
            lambda: stage.service("corrupt").get("status", {}).get("url", "").startswith("http://corrupt."),
            "status",
        )
    stage.wait_settled("corrupt")
    stage.wait_like("corrupt", wanted)
    for plural, item in children.live(stage.api, stage.namespace):
        if plural == "configmaps" and item["metadata"]["name"].startswith("corrupt"):
            stage.api.merge(f"/api/v1{base}/configmaps/{item['metadata']['name']}", {"data": None})
    stage.wait_like("corrupt", wanted)
    assert stage.operator.unexpected_lines() == []


def test_a_service_deleted_while_the_operator_is_down_and_its_pod_is_stuck(stage: Stage) -> None:
    stage.start()
    stage.apply("stuck", replicas=1, template={"nodeSelector": {"no": "where"}})
    stage.apply("other")
    pods = f"/api/v1/namespaces/{stage.namespace}/pods"
    (pod,) = wait_for(lambda: stage.api.items(pods, "octavo.dev/service=stuck"), "the pod")
    path = f"{pods}/{pod['metadata']['name']}"
    stage.api.merge(path, {"metadata": {"finalizers": ["example.com/stuck"]}})
    stage.operator.kill()
    stage.delete("stuck")
    wait_for(lambda: "deletionTimestamp" in (stage.api.get(path) or {"metadata": ()})["metadata"], "its deletion")
    stage.start()
    stage.apply("stuck")
    stage.wait_settled("stuck", "other")
    stage.wait_like("stuck", stage.children("other"))
    stage.api.merge(path, {"metadata": {"finalizers": None}})
    wait_for(lambda: stage.api.get(path) is None, "the end of the stuck pod")
    assert stage.operator.unexpected_lines() == []
