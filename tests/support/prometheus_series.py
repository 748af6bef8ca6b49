"""The series that an engine and the operator export, and the labels that scraping adds: what queries may name."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from octavo_engine.batch import SchedulerStats
from octavo_engine.metrics import Metrics
from octavo_engine.server.lifecycle import State
from octavo_operator.autoscaling import Decision, Inputs, Limit, Reason
from octavo_operator.metrics import Metrics as OperatorMetrics
from octavo_operator.names import Key
from octavo_operator.service_metrics import figures

TARGET_LABELS = {"namespace", "pod", "inferenceservice"}  # given by the PodMonitor, or by the test node's Prometheus
STATUS = {
    **dict.fromkeys(("replicas", "readyReplicas", "desiredReplicas"), 1),
    "conditions": [
        {"type": kind, "status": status, "reason": reason}
        for kind in ("Ready", "MetricsAvailable", "ScalingLimited")
        for status in ("True", "False")
        for reason in ("NoData", *(limit.value for limit in Limit))
    ],
}
"""As much of a status as its series are made from."""


@dataclass(frozen=True)
class Series:
    """A metric's type, its label names, and for each label the values it can take."""

    type: str
    labels: dict[str, set[str]]


def engine_series() -> dict[str, Series]:
    """By series name, e.g. `octavo_step_seconds_bucket`."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, model_name="m", stats=SchedulerStats)
    metrics.startup("weights", 1.0)
    metrics.engine_info(version="0")
    metrics.cache_info(block_size="16")
    metrics.server_state(lambda: dict.fromkeys(State, 0.0))
    metrics.forms_kept(lambda: 0.0)
    metrics.cpu_periods(lambda: (0, 0))
    return series_of(registry)


def operator_series() -> dict[str, Series]:
    """The same, of an operator that has decided once."""
    return series_of(operator_registry())


def operator_names() -> set[str]:
    """What the operator's metrics are called, also of those without a series yet."""
    families = {family.name for family in operator_registry().collect()}
    return families | {family + suffix for family in families for suffix in ("_total", "_bucket", "_sum", "_count")}


def operator_registry() -> CollectorRegistry:
    """An operator's metrics after it has looked at a service, met every kind of result and scaled once."""
    registry, key = CollectorRegistry(), Key("default", "assistant")
    decision = Decision(
        replicas=2, previous=1, reason=Reason.QUEUE_GROWTH, message="", inputs=Inputs(throughput=1.0), wanted=2
    )
    metrics = OperatorMetrics(registry)
    metrics.decided(key, decision)
    metrics.services.tell(key, figures(STATUS))
    for result in ("ok", "error", "bug"):
        metrics.reconciles.labels(result).inc()
    metrics.errors.labels("Refused").inc()
    metrics.api_requests.labels("GET", "pods", "200").inc()
    return registry


def series_of(registry: CollectorRegistry) -> dict[str, Series]:
    """By series name, with the labels of those that exist."""
    found: dict[str, Series] = {}
    for family in registry.collect():
        for sample in family.samples:
            series = found.setdefault(sample.name, Series(family.type, {}))
            for label, value in sample.labels.items():
                series.labels.setdefault(label, set()).add(value)
    return found
