"""Rollouts on a real cluster with one accelerator: what is broken takes no replica down, what is good arrives."""

from __future__ import annotations

from collections.abc import Callable

from cluster_tools import Kubectl, wait_for
from operator_process import OperatorProcess, Services
from story import Story


def test_what_only_running_shows_leaves_the_old_replica(services: Services) -> None:
    """A replica that passes its check and crashes, and one that fits no node: with Auto, the old one stays."""
    story = Story(services, "late")
    first = story.serves()
    story.change(model={"source": "file:///crash"})
    services.wait_condition("late", "Stalled", "CrashLoop")
    assert first <= story.pods()
    story.change(model=None, resources={"requests": {"cpu": "900"}})
    services.wait_condition("late", "Reconciling", "Unschedulable")
    assert first <= story.pods()
    deployment = services.get("deployment", "late")
    assert deployment is not None
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    story.change(resources=None)
    story.serves()
    wait_for(lambda: story.pods() == first, "the old replica alone")
    story.answers()


def test_an_upgrade_restarts_nothing_and_a_paused_change_waits(
    make_operator: Callable[..., OperatorProcess], kubectl: Kubectl, namespace: str, engine_image: str
) -> None:
    """A newer operator has another engine image by default; lost records and an edited one change nothing either."""
    services, operator = Services(kubectl, namespace), make_operator(namespace).start()
    story = Story(services, "kept", replicas=2)
    first = story.serves()
    operator.stop()
    operator.start(engine_image="localhost/none:2")
    wait_for(operator.leads, "the newer operator")
    story.change(replicas=1)
    remaining = story.serves()
    assert remaining < first
    assert story.container()["image"] == engine_image

    def record() -> dict[str, str] | None:
        return (services.get("configmap", "kept-revisions") or {}).get("data")

    kubectl("delete", "configmap", "kept-revisions", "-n", namespace)
    remade_record = wait_for(record, "the record's return")
    assert engine_image in remade_record[remade_record["active"]]
    edit = '{"data":{"active":"x"}}'
    kubectl("patch", "configmap", "kept-revisions", "-n", namespace, "--type=merge", "-p", edit)
    wait_for(lambda: record() == remade_record, "the repair")
    kubectl("delete", "deployment", "kept", "-n", namespace)
    remade = wait_for(lambda: (pods := story.pods()) and not pods & first and pods, "a replica made anew")
    assert story.container()["image"] == engine_image

    story.change(paused=True, engine={"image": engine_image, "maxNumSeqs": 9})
    story.reaches("Paused")
    assert (story.pods(), story.jobs()) == (remade, [])
    story.change(paused=None)
    assert not story.serves() & remade
    assert "--max-num-seqs=9" in story.container()["args"]
    assert operator.unexpected_lines() == []


def test_the_log_has_no_error(operator: OperatorProcess) -> None:
    assert operator.unexpected_lines() == []
