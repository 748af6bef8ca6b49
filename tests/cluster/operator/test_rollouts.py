"""Rollouts on a real cluster with one accelerator: what is broken takes no replica down, what is good arrives."""

from __future__ import annotations

import json
from collections.abc import Callable

from cluster_tools import Kubectl, wait_for
from operator_process import OperatorProcess, Services
from story import Story

ONE_GPU = {"limits": {"nvidia.com/gpu": "1"}}


def test_one_accelerator_is_enough_for_every_change(services: Services, one_gpu: None) -> None:
    """Auto goes on in place where a new replica finds no room, in both directions; InPlace does so by itself."""
    story = Story(services, "scarce", resources=ONE_GPU, engine={"maxNumSeqs": 7})
    first = story.serves()
    story.change(engine={"maxNumSeqs": 8})
    second = story.serves(90)
    assert not first & second
    assert "--max-num-seqs=8" in story.container()["args"]
    story.change(rollout="InPlace", restartedAt="2030-01-01T00:00:00Z")
    assert not second & story.serves(90)
    story.ends()


def test_what_is_broken_takes_no_replica_down(services: Services, one_gpu: None) -> None:
    """One after another, without an accelerator to spare; each is named, and the way back is open."""
    story = Story(services, "broken", resources=ONE_GPU)
    first = story.serves()
    template = story.container()
    broken = [
        ({"engine": {"maxNumSeqs": 666}}, "InvalidConfiguration", "--max-num-seqs"),
        ({"model": {"source": "file:///missing"}}, "ModelNotFound", "no such model"),
        ({"model": {"source": "hf://fake/missing"}}, "ModelNotFound", "no such model"),
        ({"engine": {"image": "localhost/none:1"}}, "ImagePullFailed", "localhost/none:1"),
        ({"rollout": "InPlace", "auth": {"apiKeySecretRef": {"name": "none", "key": "k"}}}, "", "none"),
    ]
    for change, reason, words in broken:
        before = dict(story.spec)
        story.change(**change)
        if reason:
            assert words in story.stalls(reason)
        else:
            wait_for(lambda words=words: words in json.dumps(story.status()), 60, "the missing Secret's name")
        assert story.pods() == first
        story.answers()
        story.change(**{key: before.get(key) for key in change})
    assert story.serves() == first, "reverted: nothing happened"
    assert story.container() == template
    wait_for(lambda: not story.jobs(), 30, "the end of the failed checks")
    assert not services.condition("broken", "Stalled")
    story.ends()


def test_what_only_running_shows_leaves_the_old_replica(services: Services) -> None:
    """A replica that passes its check and crashes, and one that fits no node: with Auto, the old one stays."""
    story = Story(services, "late")
    first = story.serves()
    story.change(model={"source": "file:///crash"})
    services.wait_condition("late", "Stalled", "CrashLoop", 90)
    assert first <= story.pods()
    story.change(model=None, resources={"requests": {"cpu": "900"}})
    services.wait_condition("late", "Reconciling", "Unschedulable", 60)
    assert first <= story.pods()
    deployment = services.get("deployment", "late")
    assert deployment is not None
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    story.change(resources=None)
    assert story.serves() == first
    story.answers()


def test_an_upgrade_restarts_nothing_and_a_paused_change_waits(
    make_operator: Callable[..., OperatorProcess], kubectl: Kubectl, namespace: str, engine_image: str
) -> None:
    """A newer operator has another engine image by default; lost records and an edited one change nothing either."""
    services, operator = Services(kubectl, namespace), make_operator(namespace).start(lease_seconds=15)
    story = Story(services, "kept", replicas=2)
    first = story.serves()
    operator.stop()
    operator.start(engine_image="localhost/none:2", lease_seconds=15)
    wait_for(operator.leads, 20, "the newer operator")
    story.change(replicas=1)
    remaining = story.serves()
    assert remaining < first
    assert story.container()["image"] == engine_image

    def record() -> dict[str, str] | None:
        return (services.get("configmap", "kept-revisions") or {}).get("data")

    kubectl("delete", "configmap", "kept-revisions", "-n", namespace)
    remade_record = wait_for(record, 30, "the record's return")
    assert engine_image in remade_record[remade_record["active"]]
    edit = '{"data":{"active":"x"}}'
    kubectl("patch", "configmap", "kept-revisions", "-n", namespace, "--type=merge", "-p", edit)
    wait_for(lambda: record() == remade_record, 30, "the repair")
    kubectl("delete", "deployment", "kept", "-n", namespace)
    remade = wait_for(lambda: (pods := story.pods()) and not pods & first and pods, 60, "a replica made anew")
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
