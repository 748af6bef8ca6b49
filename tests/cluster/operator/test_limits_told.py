"""What limits a replica, from its own words on `/load` to everybody who looks at the service; how often it is told."""

from __future__ import annotations

import time

import fake_engine
from cluster_tools import Kubectl, wait_for
from octavo_operator.scaler import PUBLISH_SECONDS
from operator_process import OperatorProcess, Services

NAME = "limited"
ADVICE = "Raise --max-num-seqs from 4 to 8"
LOOKS = range(31, 43)
"""Waiting requests, one sample after the other: more than the most replicas that there may be can take."""
OTHERS = len(LOOKS) // 2
"""Writes that the figures do not cause: the first publication, and a replica that a busy machine lets answer late."""


def limited(waiting: int) -> dict[str, object]:
    """A load whose sentence has figures of the moment, as an engine's."""
    said = {"limiter": "queue", "message": f"{waiting} requests wait for batch_full. {ADVICE}."}
    return fake_engine.busy(waiting) | {"limited_by": said}


def test_the_limit_is_told_to_whoever_looks_and_seldom_written(
    kubectl: Kubectl, services: Services, operator: OperatorProcess
) -> None:
    services.apply(NAME, autoscaling={"minReplicas": 1, "maxReplicas": 2})
    services.wait_ready(NAME)
    (pod,) = services.pods(NAME)
    fake_engine.set_load(kubectl, services.namespace, pod, limited(30))
    services.wait_ready(NAME, replicas=2)
    services.wait_condition(NAME, "ScalingLimited", "MaxReplicas")
    wait_for(lambda: queue(services).get("limiter") == "queue", "the limit in status")

    where = ("-n", services.namespace, "osvc", NAME)
    head, row = (line.split() for line in kubectl("get", *where, "-o", "wide").splitlines())
    assert dict(zip(head, row, strict=False))["LIMIT"] == "queue"
    assert ADVICE in kubectl("describe", *where)

    began, written = time.monotonic(), writes(operator)
    for waiting in LOOKS:  # each is seen by the scaler, and none is another limit
        fake_engine.set_load(kubectl, services.namespace, pod, limited(waiting))
        wait_for(lambda figure=waiting: sampled(operator) == figure, f"a sample of {waiting}")
    published = (time.monotonic() - began) // PUBLISH_SECONDS
    assert writes(operator) - written <= published + OTHERS, "one for each of them would be more"

    fake_engine.set_load(kubectl, services.namespace, pod, fake_engine.IDLE)
    wait_for(lambda: queue(services) == {"waiting": 0, "running": 0}, "no limit in status")


def queue(services: Services) -> dict[str, object]:
    """What status says of the queue."""
    found: dict[str, object] = (services.get("osvc", NAME) or {}).get("status", {}).get("queue", {})
    return found


def series(operator: OperatorProcess, name: str, *labels: str) -> float:
    """The sum of the operator's series of a name with these labels."""
    lines = (line for line in operator.metrics().splitlines() if line.startswith(f"{name}{{"))
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in labels))


def writes(operator: OperatorProcess) -> float:
    """How often a status was written."""
    return series(operator, "octavo_operator_api_requests_total", 'resource="inferenceservices/status"', 'verb="PATCH"')


def sampled(operator: OperatorProcess) -> float:
    """Waiting requests as the latest sample has them."""
    return series(operator, "octavo_operator_scaling_input", f'inferenceservice="{NAME}"', 'input="waiting"')
