"""The series that a running engine exports, and the labels that scraping adds: what queries may name."""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from octavo_engine.batch import SchedulerStats
from octavo_engine.metrics import Metrics

TARGET_LABELS = {"namespace", "pod", "inferenceservice"}  # given by the PodMonitor, or by the test node's Prometheus


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
    found: dict[str, Series] = {}
    for family in registry.collect():
        for sample in family.samples:
            series = found.setdefault(sample.name, Series(family.type, {}))
            for label, value in sample.labels.items():
                series.labels.setdefault(label, set()).add(value)
    return found
