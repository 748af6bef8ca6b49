"""The operator's own metrics, on a registry passed in."""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from octavo_operator.autoscaling import Decision, Reason
from octavo_operator.names import Key
from octavo_operator.service_metrics import SERVICE_LABELS, ServiceMetrics, service_labels


class Result(StrEnum):
    """How a look at a service went; `bug` is an error that nobody foresaw."""

    OK = "ok"
    ERROR = "error"
    BUG = "bug"


class Metrics:
    """Every metric of the operator. Labels are bounded by the number of services, verbs, codes and reasons."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.services = ServiceMetrics(registry)
        self.reconciles = Counter("octavo_operator_reconciles", "Reconciles by result.", ["result"], registry=registry)
        for result in Result:  # there from the start: of a series that begins at one, `increase` says nothing
            self.reconciles.labels(result)
        self.errors = Counter(
            "octavo_operator_reconcile_errors",
            "Reconciles that failed, by the kind of error: what the operator does next follows from it.",
            ["kind"],
            registry=registry,
        )
        self.reconcile_seconds = Histogram(
            "octavo_operator_reconcile_seconds", "Duration of a reconcile.", registry=registry
        )
        self.queue_depth = Gauge(
            "octavo_operator_queue_depth", "Services that wait for a reconcile.", registry=registry
        )
        self.queue_wait_seconds = Histogram(
            "octavo_operator_queue_wait_seconds",
            "Time from when a service should be looked at until a worker begins.",
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=registry,
        )
        self.api_requests = Counter(
            "octavo_operator_api_requests",
            "Requests to the API server; the code is none where no answer came.",
            ["verb", "resource", "code"],
            registry=registry,
        )
        self.watch_starts = Counter(
            "octavo_operator_watch_starts",
            "Times that watching began: one, and one more for each time it broke down or fell silent.",
            registry=registry,
        )
        self.missed_events = Counter(
            "octavo_operator_missed_events",
            "Services with a change that the heartbeat found before a watch told of it.",
            registry=registry,
        )
        self.leading = Gauge("octavo_operator_leading", "1 while this process holds the Lease.", registry=registry)
        self.decisions = Counter(
            "octavo_operator_scaling_decisions",
            "Changes of a service's replica count.",
            [*SERVICE_LABELS, "reason"],
            registry=registry,
        )
        self.desired = Gauge("octavo_operator_replicas_desired", "Replicas wanted.", SERVICE_LABELS, registry=registry)
        self.inputs = Gauge(
            "octavo_operator_scaling_input",
            "Figures the last scaling decision rests on.",
            [*SERVICE_LABELS, "input"],
            registry=registry,
        )
        self._inputs: dict[Key, set[str]] = {}

    def decided(self, key: Key, decision: Decision) -> None:
        """Records a scaling decision and what it rests on."""
        counted = {reason: self.decisions.labels(*service_labels(key), reason.value) for reason in Reason}
        self.desired.labels(*service_labels(key)).set(decision.replicas)
        figures = {name: value for name, value in vars(decision.inputs).items() if value is not None}
        for name, value in (figures | {"wanted": decision.wanted}).items():
            self.inputs.labels(*service_labels(key), name).set(value)
            self._inputs.setdefault(key, set()).add(name)
        if decision.changed:
            counted[decision.reason].inc()

    def forget(self, key: Key) -> None:
        """Drops the series of a service that is gone."""
        if key in self._inputs:
            self.desired.remove(*service_labels(key))
            for reason in Reason:
                self.decisions.remove(*service_labels(key), reason.value)
        for name in self._inputs.pop(key, ()):
            self.inputs.remove(*service_labels(key), name)
