"""Prometheus rules: what boards and queries of one's own share, recorded once; the alerts about services and operator.

The alerts about services are the operator's own (`octavo_operator.manifests.alerts`), which gives each service a
PrometheusRule. Here they are written once more, for all services, for a Prometheus that reads rule files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from octavo_operator.manifests.alerting import BY_SERVICE, Alert, Scope, Severity
from octavo_operator.manifests.alerts import Objectives, service_alerts

Group = dict[str, Any]

_ALL = Scope()
_HEADER = "# Written by `make generate` from hack/boards/rules.py and operator/octavo_operator/manifests/alerts.py.\n"


@dataclass(frozen=True)
class Record:
    """A recorded series of each service, named as Prometheus' conventions say: LEVEL:METRIC:OPERATION."""

    metric: str
    operation: str
    expr: str

    @property
    def name(self) -> str:
        """What boards ask for."""
        return f"inferenceservice:{self.metric}:{self.operation}"

    def rendered(self) -> Group:
        """As Prometheus reads it."""
        return {"record": self.name, "expr": self.expr}


def _rate(counter: str, matchers: str = "", more: str = "") -> str:
    return _ALL.rate(counter, "5m", matchers, f"{BY_SERVICE}{more}")


def _quantile(histogram: str, percent: int) -> Record:
    buckets = _rate(f"{histogram}_bucket", more=", le")
    return Record(histogram, f"p{percent}_5m", f"histogram_quantile({percent / 100}, {buckets})")


def _rate_of(counter: str, more: str = "") -> Record:
    return Record(counter, "rate5m", _rate(counter, more=more))


def _hit_ratio(lookups: str) -> Record:
    hits, all_of_them = _rate(lookups, 'result="hit"'), _rate(lookups)
    return Record(lookups, "hit_ratio5m", f"{hits} / ({all_of_them} > 0)")


FIRST_TOKEN_P99 = _quantile("octavo_time_to_first_token_seconds", 99)
INTER_TOKEN_P99 = _quantile("octavo_inter_token_latency_seconds", 99)
GENERATED = _rate_of("octavo_generation_tokens_total")
PROMPTS = _rate_of("octavo_prompt_tokens_total", ", source")
ENDED = _rate_of("octavo_requests_total")
REJECTED = _rate_of("octavo_requests_rejected_total")
WAITING = Record("octavo_requests_waiting", "sum", _ALL.total("octavo_requests_waiting", by=f"{BY_SERVICE}, reason"))
RUNNING = Record("octavo_requests_running", "sum", _ALL.total("octavo_requests_running"))
KV_USAGE = Record("octavo_kv_cache_usage_ratio", "max", _ALL.highest("octavo_kv_cache_usage_ratio"))
PREFIX_HITS = _hit_ratio("octavo_prefix_cache_tokens_total")

RECORDS = (
    *(FIRST_TOKEN_P99, INTER_TOKEN_P99, GENERATED, PROMPTS, ENDED, REJECTED),
    *(WAITING, RUNNING, KV_USAGE, PREFIX_HITS),
)


def operator_alerts() -> list[Alert]:
    """Every alert about the operator itself. While it is away services go on serving: none of them wakes anybody."""
    failed = 'sum(increase(octavo_operator_reconciles_total{result!="ok"}[15m]))'
    all_looks = "sum(increase(octavo_operator_reconciles_total[15m]))"
    waits = "sum by (le) (rate(octavo_operator_queue_wait_seconds_bucket[10m]))"
    return [
        Alert(
            "OctavoOperatorMissing",
            "absent(octavo_operator_leading == 1)",
            5,
            Severity.WARNING,
            "No operator of Octavo acts",
            "Services go on serving, but none is scaled, rolled out or repaired.",
        ),
        Alert(
            "OctavoReconcilesFail",
            f"({failed} / {all_looks} > 0.1) and ({failed} >= 5)",
            5,
            Severity.WARNING,
            "{{ $value | humanizePercentage }} of the operator's looks at services fail",
            "What it wants to write is refused or not answered; changes of services have to wait.",
        ),
        Alert(
            "OctavoOperatorBug",
            'sum(increase(octavo_operator_reconciles_total{result="bug"}[30m])) > 0',
            0,
            Severity.WARNING,
            "A fault of the operator's own stopped it at a service",
            "Other services are not touched by it. The log has the trace; please report it.",
        ),
        Alert(
            "OctavoOperatorBehind",
            f"histogram_quantile(0.99, {waits}) > 10",
            10,
            Severity.WARNING,
            "Services wait {{ $value | humanizeDuration }} until the operator looks at them",
            "Changes and scaling decisions come late.",
        ),
    ]


def recorded() -> Group:
    """The group of recording rules."""
    return {"name": "octavo-recorded", "rules": [record.rendered() for record in RECORDS]}


def _group(name: str, alerts: list[Alert]) -> Group:
    return {"name": name, "rules": [alert.rendered() for alert in alerts]}


def once() -> list[Group]:
    """What a cluster needs once, however many services there are: the chart's."""
    return [recorded(), _group("octavo-operator", operator_alerts())]


def everything() -> list[Group]:
    """With the alerts about services, all of them in one group."""
    return [*once(), _group("octavo-service", service_alerts(_ALL, Objectives()))]


def text(groups: list[Group]) -> str:
    """A rule file."""
    return _HEADER + yaml.safe_dump({"groups": groups}, sort_keys=False, width=120, allow_unicode=True)
