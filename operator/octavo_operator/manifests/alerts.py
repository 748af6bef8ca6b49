"""What to warn of in a service: each alert with its bounds, and why they are what they are. Pure.

All are quiet at zero load and at zero replicas: a rate without requests is no number, and no replica is missing where
none is wanted. docs/runbooks has a page for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from octavo_operator.manifests.alerting import BY_POD, BY_SERVICE, Alert, Scope, Severity, bound_of

# fmt: off
FIRST_TOKEN_BOUNDS = (
    0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 30, 60,
    120, 300,
)
INTER_TOKEN_BOUNDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 0.75, 1, 2, 5, 10,
)
# fmt: on
"""The bounds of the engine's histograms: text that both share."""

ALLOWED = 0.01
"""The share of requests, and of tokens, that may be later than the objective."""
FAST, SLOW = 14.4, 6.0
"""How often the allowed share is used up: at 14.4 a month's is gone in two days, at 6 in five. Source: the chapter on
alerting of Google's Site Reliability Workbook (multiple windows, multiple burn rates)."""
LEAST_REQUESTS, LEAST_TOKENS = 50, 1000
"""Below so many in the long window a single late one would speak for all."""

_SERVICE = "{{ $labels.namespace }}/{{ $labels.inferenceservice }}"
_POD = "{{ $labels.namespace }}/{{ $labels.pod }}"
_PERCENT = "{{ $value | humanizePercentage }}"
_RESTARTING = 3
_SHUT_OUT = 'reason=~"queue_full|queue_tokens_full"'


@dataclass(frozen=True)
class Objectives:
    """What 99 of 100 shall keep, in seconds."""

    first_token: float = 5.0
    inter_token: float = 0.2


def service_alerts(scope: Scope, objectives: Objectives) -> list[Alert]:
    """Every alert about services."""
    return [
        *_first_token(scope, bound_of(objectives.first_token, FIRST_TOKEN_BOUNDS)),
        *_inter_token(scope, bound_of(objectives.inter_token, INTER_TOKEN_BOUNDS)),
        _queue_growing(scope),
        _rejected(scope),
        _stuck(scope),
        _cache_full(scope),
        _preemptions(scope),
        _no_replica(scope),
        _slow_start(scope),
        _restarts(scope),
        _scaling_limited(scope),
        _metrics_missing(scope),
    ]


def _first_token(scope: Scope, seconds: float) -> Iterator[Alert]:
    yield from _burn(
        scope,
        "OctavoFirstTokenLate",
        ("octavo_time_to_first_token_seconds", seconds, LEAST_REQUESTS),
        f"{_PERCENT} of the first tokens of {_SERVICE} come later than {seconds:g} s",
    )


def _inter_token(scope: Scope, seconds: float) -> Iterator[Alert]:
    yield from _burn(
        scope,
        "OctavoTokensSlow",
        ("octavo_inter_token_latency_seconds", seconds, LEAST_TOKENS),
        f"{_PERCENT} of the waits between tokens of {_SERVICE} are longer than {seconds:g} s",
    )


def _burn(scope: Scope, name: str, objective: tuple[str, float, int], summary: str) -> Iterator[Alert]:
    """Fast and slow: the long window says that it matters, the short one that it still goes on.

    Args:
        objective: the histogram, the bound, and the observations without which nothing is said.
    """
    histogram, seconds, least = objective
    for severity, factor, (long, short), minutes in (
        (Severity.CRITICAL, FAST, ("1h", "5m"), 2),
        (Severity.WARNING, SLOW, ("6h", "30m"), 15),
    ):
        bound = f"{factor * ALLOWED:g}"
        expr = (
            f"({scope.late_share(histogram, seconds, long)} > {bound})"
            f" and ({scope.late_share(histogram, seconds, short)} > {bound})"
            f" and ({scope.increase(f'{histogram}_count', long)} >= {least})"
        )
        words = f"The objective allows {ALLOWED:.0%}; at this rate a month's share lasts {30 / factor:.0f} days."
        yield Alert(name, expr, minutes, severity, summary, words)


def _queue_growing(scope: Scope) -> Alert:
    """A burst is drained within minutes; a queue that is longer than ten minutes ago is not."""
    waiting = scope.total("octavo_requests_waiting")
    before = f"sum by ({BY_SERVICE}) ({scope.of('octavo_requests_waiting')} offset 10m)"
    return Alert(
        "OctavoQueueGrowing",
        f"({waiting} > 1.1 * {before} + 4) and (min_over_time(({waiting})[10m:1m]) > 0)",
        5,
        Severity.WARNING,
        f"{{{{ $value }}}} requests wait in {_SERVICE}, more than ten minutes ago",
        "More comes than is served, and has for ten minutes: the time to the first token grows with the queue.",
    )


def _rejected(scope: Scope) -> Alert:
    refused = scope.rate("octavo_requests_rejected_total", "5m", _SHUT_OUT)
    came = f"({refused} + {scope.rate('octavo_requests_total', '5m')})"
    enough = scope.increase("octavo_requests_rejected_total", "5m", _SHUT_OUT)
    return Alert(
        "OctavoRequestsRejected",
        f"({refused} / {came} > 0.05) and ({enough} >= 5)",
        5,
        Severity.WARNING,
        f"{_SERVICE} turns {_PERCENT} of its requests away",
        "The queue is at its bound: clients get 429 with Retry-After, and those that do not come again have lost.",
    )


def _stuck(scope: Scope) -> Alert:
    """The engine's own watchdog ends a frozen process; this tells of one that goes on without doing anything."""
    held = f"{scope.total('octavo_requests_running', by=BY_POD)} + {scope.total('octavo_requests_waiting', by=BY_POD)}"
    steps = scope.increase("octavo_step_seconds_count", "3m", by=BY_POD)
    return Alert(
        "OctavoEngineStuck",
        f"({held} > 0) and ({steps} == 0)",
        1,
        Severity.CRITICAL,
        f"{_POD} holds {{{{ $value }}}} requests and has computed nothing for three minutes",
        "Its clients wait for tokens that do not come.",
    )


def _cache_full(scope: Scope) -> Alert:
    waiting = f"avg_over_time({scope.of('octavo_requests_waiting', _reason('kv_full'))}[10m])"
    usage = f"avg_over_time({scope.of('octavo_kv_cache_usage_ratio')}[10m])"
    return Alert(
        "OctavoKvCacheFull",
        f"(sum by ({BY_POD}) ({waiting}) >= 1) and (max by ({BY_POD}) ({usage}) > 0.9)",
        5,
        Severity.WARNING,
        f"{{{{ $value | humanize }}}} requests wait for KV blocks of {_POD}",
        "For ten minutes prompts have not fitted into the free blocks: memory, not compute, bounds this replica.",
    )


def _preemptions(scope: Scope) -> Alert:
    """A preemption now and then costs nothing; a fifth of the work done twice does."""
    again = scope.rate("octavo_prompt_tokens_total", "10m", 'source="recomputed"')
    work = scope.rate("octavo_prompt_tokens_total", "10m", 'source!="cached"')
    return Alert(
        "OctavoPreemptionStorm",
        f"({again} / {work} > 0.2) and ({scope.increase('octavo_preemptions_total', '10m')} >= 10)",
        5,
        Severity.WARNING,
        f"{_SERVICE} computes {_PERCENT} of its prompt tokens a second time",
        "Running requests lose their KV blocks to others and begin again: throughput falls and answers pause.",
    )


def _no_replica(scope: Scope) -> Alert:
    wanted = scope.highest("octavo_operator_service_replicas", 'state="desired"')
    ready = scope.highest("octavo_operator_service_replicas", 'state="ready"')
    return Alert(
        "OctavoNoReadyReplica",
        f"({wanted} > 0) and ({ready} == 0)",
        10,
        Severity.CRITICAL,
        f"No replica of {_SERVICE} serves, and {{{{ $value }}}} shall",
        "Every request fails. The condition Ready of the InferenceService names the cause.",
    )


def _slow_start(scope: Scope) -> Alert:
    starting = scope.highest("octavo_server_state", 'state=~"starting|warming"', by=BY_POD)
    return Alert(
        "OctavoSlowStart",
        f"{starting} == 1",
        15,
        Severity.WARNING,
        f"{_POD} has been starting for a quarter of an hour",
        "Until it serves it takes no load off the others. At spec.startupSeconds it is restarted, and begins anew.",
    )


def _restarts(scope: Scope) -> Alert:
    """Differences of a gauge that falls when a pod is replaced: what it rose to in half an hour."""
    now = scope.highest("octavo_operator_service_restarts")
    return Alert(
        "OctavoRestartLoop",
        f"{now} - min_over_time(({now})[30m:1m]) >= {_RESTARTING}",
        0,
        Severity.CRITICAL,
        f"Engines of {_SERVICE} were restarted {{{{ $value }}}} times in half an hour",
        "What a restart does not cure needs a person: the condition's reason has the container's last words.",
    )


def _scaling_limited(scope: Scope) -> Alert:
    """Not by the size of one step, which ends by itself."""
    limited = 'type="ScalingLimited",status="True",reason!="StepLimit"'
    return Alert(
        "OctavoScalingLimited",
        f"{scope.highest('octavo_operator_service_condition', limited, by=f'{BY_SERVICE}, reason')} == 1",
        15,
        Severity.WARNING,
        f"{_SERVICE} needs more replicas than it gets: {{{{ $labels.reason }}}}",
        "The load asks for more than maxReplicas, or what was added finds no node or does not start.",
    )


def _metrics_missing(scope: Scope) -> Alert:
    """Replicas that serve and that Prometheus has no series of, or that the operator cannot read the load of."""
    ready = scope.highest("octavo_operator_service_replicas", 'state="ready"')
    seen = f"count by ({BY_SERVICE}) ({scope.of('octavo_requests_running')})"
    silent = scope.highest("octavo_operator_service_condition", 'type="MetricsAvailable",status="False"')
    return Alert(
        "OctavoMetricsMissing",
        f"({ready} - ({seen} or 0 * {ready}) > 0) or ({silent} == 1)",
        10,
        Severity.WARNING,
        f"Replicas of {_SERVICE} serve without being seen",
        "Boards and alerts say too little of it, and the replica count may be held where it is.",
    )


def _reason(value: str) -> str:
    return f'reason="{value}"'
