"""What the operator knows of each service, as series: replicas, accelerators, restarts and conditions.

The figures are those of the service's status, as the latest look made them; nothing is read for a scrape. A service has
one series for each condition and state, and they go with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from octavo_operator import names
from octavo_operator.names import Key

SERVICE_LABELS = ("namespace", "inferenceservice")

_STATES = {"desired": "desiredReplicas", "present": "replicas", "ready": "readyReplicas"}
_REPLICAS = "Replicas of a service: those wanted, those there that do not go, those that serve."
_ACCELERATORS = "Accelerators that the replicas which are there hold."
_RESTARTS = "Restarts of the containers of the replicas which are there."
_CONDITION = "1 for the status and the reason that each condition of a service has now."


@dataclass(frozen=True)
class Figures:
    """One service at its latest look.

    Attributes:
        replicas: by state; a state that is not known is absent.
        conditions: type, status and reason of each.
    """

    replicas: Mapping[str, int] = field(default_factory=dict)
    accelerators: int = 0
    restarts: int = 0
    conditions: tuple[tuple[str, str, str], ...] = ()


def figures(status: Mapping[str, Any], *, accelerators: int = 0, restarts: int = 0) -> Figures:
    """Reads a service's status.

    Args:
        accelerators: that one replica has.
        restarts: of all its replicas' containers.
    """
    replicas = {state: int(status[name]) for state, name in _STATES.items() if name in status}
    told = tuple((item["type"], item["status"], item["reason"]) for item in status.get("conditions", ()))
    return Figures(replicas, accelerators * replicas.get("present", 0), restarts, told)


def service_labels(key: Key) -> tuple[str, str]:
    """Values of SERVICE_LABELS: the name is that of the pods' label, so that the engines' series have the same."""
    return key.namespace, names.child_name(key.name)


class ServiceMetrics(Collector):
    """The series of all services, on `registry`. Single event loop only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._figures: dict[Key, Figures] = {}
        registry.register(self)

    def tell(self, key: Key, latest: Figures) -> None:
        """Takes note of a service as it is now."""
        self._figures[key] = latest

    def forget(self, key: Key) -> None:
        """Drops the series of a service that is gone."""
        self._figures.pop(key, None)

    def known(self) -> set[Key]:
        """Services that have series."""
        return set(self._figures)

    def collect(self) -> Iterable[Metric]:
        """One family for each of the figures; called at scrape."""
        replicas = GaugeMetricFamily("octavo_operator_service_replicas", _REPLICAS, labels=(*SERVICE_LABELS, "state"))
        held = GaugeMetricFamily("octavo_operator_service_accelerators", _ACCELERATORS, labels=SERVICE_LABELS)
        restarts = GaugeMetricFamily("octavo_operator_service_restarts", _RESTARTS, labels=SERVICE_LABELS)
        conditions = GaugeMetricFamily(
            "octavo_operator_service_condition", _CONDITION, labels=(*SERVICE_LABELS, "type", "status", "reason")
        )
        for key, latest in self._figures.items():
            whose = service_labels(key)
            for state, count in latest.replicas.items():
                replicas.add_metric((*whose, state), count)
            for words in latest.conditions:
                conditions.add_metric((*whose, *words), 1)
            held.add_metric(whose, latest.accelerators)
            restarts.add_metric(whose, latest.restarts)
        return replicas, held, restarts, conditions
