"""Autoscaling on the node, with engines whose load the test writes."""

from __future__ import annotations

import time

import fake_engine
from cluster_tools import Kubectl, wait_for
from operator_process import Services


def desired(services: Services, name: str) -> int:
    deployment = services.get("deployment", name)
    assert deployment is not None
    count: int = deployment["spec"]["replicas"]
    return count


def test_a_growing_queue_adds_a_replica_and_an_empty_one_takes_it_back(kubectl: Kubectl, services: Services) -> None:
    services.apply("grows", autoscaling={"maxReplicas": 2, "targetQueueDepth": 2})
    services.wait_ready("grows")
    (first,) = services.pods("grows")
    fake_engine.set_load(kubectl, services.namespace, first, fake_engine.busy(waiting=9))
    started = time.monotonic()
    wait_for(lambda: desired(services, "grows") == 2, 10, "the second replica")
    assert time.monotonic() - started < 10
    document = services.wait_ready("grows", replicas=2)
    (decision,) = document["status"]["scaling"]["decisions"]
    assert (decision["fromReplicas"], decision["toReplicas"]) == (1, 2)
    assert "9 waiting" in decision["message"]

    (second,) = set(services.pods("grows")) - {first}
    fake_engine.set_load(kubectl, services.namespace, first, fake_engine.busy(waiting=0, running=1))
    wait_for(lambda: desired(services, "grows") == 1, 40, "one replica less")
    wait_for(lambda: services.pods("grows") == [first], 30, "the end of the least busy replica")
    assert second not in services.pods("grows")


def test_garbage_holds_the_count_and_is_told(kubectl: Kubectl, services: Services) -> None:
    services.apply("garbage", autoscaling={"maxReplicas": 3, "minReplicas": 2})
    services.wait_ready("garbage", replicas=2)
    for pod in services.pods("garbage"):
        fake_engine.set_load(kubectl, services.namespace, pod, {"running": "NaN"})
    condition = services.wait_condition("garbage", "MetricsAvailable", "NoData")
    assert "held" in condition["message"]
    assert desired(services, "garbage") == 2


def test_an_unschedulable_replica_limits_scaling(kubectl: Kubectl, services: Services) -> None:
    # One such pod fits a node of this memory, two do not.
    nodes = kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.allocatable.memory}")
    half = int(nodes.removesuffix("Ki")) * 55 // 100
    resources = {"requests": {"memory": f"{half}Ki"}}
    services.apply("limited", autoscaling={"maxReplicas": 4, "targetQueueDepth": 1}, resources=resources)
    services.wait_ready("limited")
    (first,) = services.pods("limited")
    fake_engine.set_load(kubectl, services.namespace, first, fake_engine.busy(waiting=40))
    condition = services.wait_condition("limited", "ScalingLimited", "PodsUnschedulable")
    assert condition["status"] == "True"
    assert desired(services, "limited") == 2
    assert services.condition("limited", "Ready")["status"] == "True"
    kubectl("delete", "osvc", "limited", "-n", services.namespace)


def test_mode_external_leaves_the_count_to_the_scale_subresource(kubectl: Kubectl, services: Services) -> None:
    services.apply("external", replicas=1, autoscaling={"mode": "External"})
    services.wait_ready("external")
    (first,) = services.pods("external")
    fake_engine.set_load(kubectl, services.namespace, first, fake_engine.busy(waiting=99))
    kubectl("scale", "osvc/external", "-n", services.namespace, "--replicas=2")
    services.wait_ready("external", replicas=2)
    scale = kubectl("get", "--raw", f"/apis/octavo.dev/v1alpha1/namespaces/{services.namespace}"
                    "/inferenceservices/external/scale")  # fmt: skip
    assert '"selector":"octavo.dev/service=external"' in scale
