"""Services on a node with one accelerator or none: causes, rollouts and scaling where there is no room.

All tests that count on how many accelerators there are are in this file, because a file is run by one worker.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator

import pytest

import fake_engine
from cluster_tools import Kubectl, wait_for
from node import config
from operator_process import Services
from patience import PATIENCE_SECONDS
from story import Story

ONE_GPU = {"limits": {"nvidia.com/gpu": "1"}}


@pytest.fixture(scope="module")
def one_gpu(cluster: config.Settings, kubectl: Kubectl) -> Iterator[None]:
    """The node claims one accelerator, and nobody holds it."""
    if cluster.kubeconfig is not None:
        pytest.skip("another cluster's nodes are not ours to change")

    def held() -> bool:
        pods = json.loads(kubectl("get", "pods", "-A", "-o", "json", "--field-selector=spec.nodeName!="))["items"]
        return any("nvidia.com/gpu" in json.dumps(pod["spec"]["containers"]) for pod in pods)

    wait_for(lambda: not held(), "the end of others' accelerators")
    for count in ("1", "0"):
        subprocess.run(
            [config.HACK / "cluster", "gpus", count], check=True, capture_output=True, timeout=PATIENCE_SECONDS
        )
        if count == "1":
            yield


def test_a_missing_accelerator_is_told(services: Services) -> None:
    services.apply("no-gpu", resources=ONE_GPU)
    condition = services.wait_condition("no-gpu", "Ready", "InsufficientAccelerator")
    assert "Insufficient nvidia.com" in condition["message"]
    assert condition["status"] == "False"
    services.delete("no-gpu")


def test_one_accelerator_is_enough_for_every_change(services: Services, one_gpu: None) -> None:
    """Auto goes on in place where a new replica finds no room, in both directions; InPlace does so by itself."""
    story = Story(services, "scarce", resources=ONE_GPU, engine={"maxNumSeqs": 7})
    first = story.serves()
    story.change(engine={"maxNumSeqs": 8})
    second = story.serves()
    assert not first & second
    assert "--max-num-seqs=8" in story.container()["args"]
    story.change(rollout="InPlace", restartedAt="2030-01-01T00:00:00Z")
    assert not second & story.serves()
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
            wait_for(lambda words=words: words in json.dumps(story.status()), "the missing Secret's name")
        assert story.pods() == first
        story.answers()
        story.change(**{key: before.get(key) for key in change})
    assert story.serves() == first, "reverted: nothing happened"
    assert story.container() == template
    wait_for(lambda: not story.jobs(), "the end of the failed checks")
    wait_for(lambda: not services.condition("broken", "Stalled"), "the end of the trouble")
    story.ends()


def test_a_replica_without_an_accelerator_limits_scaling(kubectl: Kubectl, services: Services, one_gpu: None) -> None:
    scale = {"maxReplicas": 4, "targetQueueDepth": 1}
    services.apply("limited", autoscaling=scale, resources={"limits": {"nvidia.com/gpu": "1"}}, rollout="InPlace")
    services.wait_ready("limited")
    (first,) = services.pods("limited")
    fake_engine.set_load(kubectl, services.namespace, first, fake_engine.busy(waiting=3))
    condition = services.wait_condition("limited", "ScalingLimited", "PodsUnschedulable")
    assert condition["status"] == "True"
    fake_engine.set_load(kubectl, services.namespace, first, fake_engine.busy(waiting=40))
    time.sleep(5)  # several samples of a queue that asks for more
    assert services.desired("limited") == 2
    wait_for(lambda: services.condition("limited", "Ready")["status"] == "True", "the replica that serves")
    fake_engine.set_load(kubectl, services.namespace, first, fake_engine.IDLE)
    wait_for(lambda: services.desired("limited") == 1, "the pending replica to be given up")
    wait_for(lambda: services.pods("limited") == [first], "the serving replica to be the one that stays")
    services.wait_condition("limited", "ScalingLimited", "NotLimited")
    services.delete("limited")
