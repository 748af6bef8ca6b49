"""The operator's own series: there at zero before the first case, and gone with their service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from octavo_operator.autoscaling import Decision, Inputs, Reason
from octavo_operator.metrics import Metrics
from octavo_operator.names import Key

KEY = Key("team", "assistant")


def samples(registry: CollectorRegistry, name: str) -> dict[str, float]:
    """By the last label."""
    families = (family for family in registry.collect() if family.name.startswith(name))
    found = [sample for family in families for sample in family.samples if not sample.name.endswith("_created")]
    return {list(sample.labels.values())[-1]: sample.value for sample in found}


def decision(reason: Reason, replicas: int, previous: int) -> Decision:
    return Decision(replicas=replicas, previous=previous, reason=reason, message="", inputs=Inputs(), wanted=replicas)


def test_the_first_look_that_fails_is_an_increase() -> None:
    """Prometheus counts from a value that it has seen: a series that begins at one has not increased."""
    registry = CollectorRegistry()
    Metrics(registry)
    assert samples(registry, "octavo_operator_reconciles") == {"ok": 0, "error": 0, "bug": 0}


def test_the_first_change_of_a_replica_count_is_an_increase() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.decided(KEY, decision(Reason.STEADY, 1, 1))
    counted = samples(registry, "octavo_operator_scaling_decisions")
    assert counted == {reason.value: 0 for reason in Reason}
    metrics.decided(KEY, decision(Reason.QUEUE_GROWTH, 2, 1))
    assert samples(registry, "octavo_operator_scaling_decisions") == counted | {"QueueGrowth": 1}


def test_nothing_is_left_of_a_service_that_is_gone() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.decided(KEY, decision(Reason.QUEUE_GROWTH, 2, 1))
    metrics.forget(KEY)
    metrics.forget(KEY)
    assert samples(registry, "octavo_operator_scaling") == samples(registry, "octavo_operator_replicas") == {}
