"""The Operator board: whether it acts, keeps up, and is answered."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from boards import frame, panels
from boards.panels import Events, Panel, graph
from boards.queries import PERCENTILES, Query, happened, or_none, rate_of, total

_PREFIX = "octavo_operator_"


def board() -> dashboard.Dashboard:
    """The whole board."""
    return frame.board(
        frame.Frame(
            title="Operator",
            uid="octavo-operator",
            description="Octavo's operator: who leads, how long services wait for it, what the API server answers, what"
            " it decides.",
            variables=[frame.any_of("pod", "Pod", f"label_values({_PREFIX}leading, pod)")],
            marks=[
                Events("Scaling", happened(f"{_PREFIX}scaling_decisions_total"), "{{inferenceservice}} {{reason}}"),
                Events("Watches", happened(_own("watch_starts_total")), "the watches of {{pod}} began anew"),
            ],
        ),
        ROWS,
    )


def _own(name: str) -> str:
    """The selector of what a process of the operator says of itself."""
    return f'{_PREFIX}{name}{{pod=~"$pod"}}'


def _quantiles(name: str) -> tuple[Query, ...]:
    buckets = total(rate_of(_own(f"{name}_bucket")), "le")
    return tuple(Query(f"histogram_quantile({share}, {buckets})", words) for words, share in PERCENTILES.items())


def _work() -> list[Panel]:
    return [
        graph(
            "Who leads",
            "One process acts, the others stand by. None for longer than the Lease: nothing is scaled or repaired.",
            panels.COUNT,
            Query(_own("leading"), "{{pod}}"),
        ),
        graph(
            "Looks at services",
            "By result. error: the API server refused or did not answer, and it is tried again. bug: ours.",
            panels.LOOKS_PER_SECOND,
            Query(total(rate_of(_own("reconciles_total")), "result"), "{{result}}"),
        ),
        graph(
            "Failed looks by error",
            "Refused and Conflict need a person or a moment; Retryable and Throttled pass.",
            panels.LOOKS_PER_SECOND,
            Query(or_none(total(rate_of(_own("reconcile_errors_total")), "kind"), "kind"), "{{kind}}"),
        ),
        graph(
            "Wait for a look",
            "From when a service should be looked at until a worker begins. Rising: too few workers, or a slow API.",
            panels.SECONDS,
            *_quantiles("queue_wait_seconds"),
            limit=10,
        ),
        graph(
            "A look",
            "How long one takes: mostly the API server's answers.",
            panels.SECONDS,
            *_quantiles("reconcile_seconds"),
        ),
        graph(
            "Services that wait",
            "For a worker. A storm of new services drains within seconds.",
            panels.COUNT,
            Query(total(_own("queue_depth")), "waiting"),
        ),
    ]


def _cluster() -> list[Panel]:
    requests = rate_of(_own("api_requests_total"))
    return [
        graph(
            "Requests to the API server",
            "By verb. The Lease and the heartbeat's lists of a namespace make about one a second, however many"
            " services it has; a steady one adds none.",
            panels.REQUESTS_PER_SECOND,
            Query(total(requests, "verb"), "{{verb}}"),
        ),
        graph(
            "Answers",
            "By code. 403: the role lacks a right. 409: another writer was faster. 429 and 5xx: the API server is at"
            " its limit. none: it did not answer.",
            panels.REQUESTS_PER_SECOND,
            Query(total(requests, "code"), "{{code}}"),
        ),
        graph(
            "Watches",
            "How often they began, and what the heartbeat found before they told it. Rising: the connection breaks, or"
            " something between drops idle ones.",
            panels.COUNT,
            Query(total(_own("watch_starts_total")), "began"),
            Query(total(_own("missed_events_total")), "missed"),
        ),
    ]


def _decisions() -> list[Panel]:
    replicas = f"{_PREFIX}service_replicas"
    decided = total(f"increase({_PREFIX}scaling_decisions_total[5m])", "reason")
    return [
        graph(
            "Scaling decisions",
            "Changes of a replica count within five minutes, by reason. Marks on the graphs say of which service.",
            panels.COUNT,
            Query(or_none(f"round({decided})", "reason"), "{{reason}}"),
        ),
        graph(
            "Replicas of all services",
            "Desired above ready for long: something keeps replicas from starting; the Fleet board tells which.",
            panels.COUNT,
            Query(total(replicas, "state"), "{{state}}"),
        ),
        graph(
            "Services by their condition Ready",
            "With the reason.",
            panels.COUNT,
            Query(total(f'{_PREFIX}service_condition{{type="Ready"}}', "reason"), "{{reason}}"),
            stacked=True,
        ),
    ]


ROWS = {"Its work": _work, "The API server": _cluster, "What it decides": _decisions}
