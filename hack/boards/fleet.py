"""The Fleet board: all services side by side, what they hold and what they make of it."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard

from boards import frame, panels, rules
from boards.panels import Events, Panel, figures, graph
from boards.queries import Query, happened, highest, or_none, ratio, services_series, total
from boards.rules import Record

_BY_SERVICE = ("namespace", "inferenceservice")
_LEGEND = "{{namespace}}/{{inferenceservice}}"
_LINK = ("This service's board", frame.service_address("__field.labels"))
_REPLICAS = "octavo_operator_service_replicas"
_GPU_BUSY = "DCGM_FI_DEV_GPU_UTIL"
"""Of NVIDIA's dcgm-exporter, in percent: how much of the time any kernel ran, not how much of the device it used."""


def board() -> dashboard.Dashboard:
    """The whole board."""
    decided = happened(services_series("octavo_operator_scaling_decisions_total"))
    return frame.board(
        frame.Frame(
            title="Fleet",
            uid="octavo-fleet",
            description="All InferenceServices: latency, load, replicas, accelerators and what they yield. Needs the"
            " recording rules.",
            variables=frame.many_services(),
            marks=[Events("Scaling", decided, "{{inferenceservice}} {{reason}}")],
        ),
        ROWS,
    )


def recorded(record: Record) -> str:
    """A recorded series of the chosen services."""
    return services_series(record.name)


def _lines(title: str, help: str, unit: str, expr: str, *, width: int = 6, limit: float | None = None) -> Panel:
    """One line for each service."""
    return graph(title, help, unit, Query(expr, _LEGEND), width=width, limit=limit, link=_LINK)


def _state(state: str) -> str:
    return highest(services_series(_REPLICAS, f'state="{state}"'), *_BY_SERVICE)


def _overview() -> list[Panel]:
    return [
        figures(
            "Services",
            "The last five minutes of each. A click on a name opens its board.",
            {
                "ready": (_state("ready"), panels.COUNT),
                "wanted": (_state("desired"), panels.COUNT),
                "waiting": (total(recorded(rules.WAITING), *_BY_SERVICE), panels.COUNT),
                "running": (total(recorded(rules.RUNNING), *_BY_SERVICE), panels.COUNT),
                "first token P99": (highest(recorded(rules.FIRST_TOKEN_P99), *_BY_SERVICE), panels.SECONDS),
                "inter-token P99": (highest(recorded(rules.INTER_TOKEN_P99), *_BY_SERVICE), panels.SECONDS),
                "tokens a second": (total(recorded(rules.GENERATED), *_BY_SERVICE), panels.TOKENS_PER_SECOND),
                "KV use": (highest(recorded(rules.KV_USAGE), *_BY_SERVICE), panels.RATIO),
                "prefix hits": (highest(recorded(rules.PREFIX_HITS), *_BY_SERVICE), panels.RATIO),
            },
            ("This service's board", frame.service_address("__data.fields")),
        )
    ]


def _load() -> list[Panel]:
    return [
        _lines(
            "Time to first token, P99",
            "The service at the top is the one to open first.",
            panels.SECONDS,
            recorded(rules.FIRST_TOKEN_P99),
        ),
        _lines(
            "Inter-token latency, P99",
            "Of all tokens of a service.",
            panels.SECONDS,
            recorded(rules.INTER_TOKEN_P99),
        ),
        _lines(
            "Generated tokens",
            "Over all replicas of a service.",
            panels.TOKENS_PER_SECOND,
            recorded(rules.GENERATED),
        ),
        _lines(
            "Waiting requests",
            "Those that wait for a replica's step, memory or place in the batch.",
            panels.COUNT,
            total(recorded(rules.WAITING), *_BY_SERVICE),
        ),
        _lines(
            "Requests",
            "That ended, whatever their end.",
            panels.REQUESTS_PER_SECOND,
            recorded(rules.ENDED),
        ),
        _lines(
            "Rejected requests",
            "Refused at the door: a full queue, a drain, or a request that is not valid.",
            panels.REQUESTS_PER_SECOND,
            total(recorded(rules.REJECTED), *_BY_SERVICE),
        ),
        graph(
            "Prompt tokens",
            "Of all services, by where their K/V came from. Recomputed ones are work done twice.",
            panels.TOKENS_PER_SECOND,
            Query(total(recorded(rules.PROMPTS), "source"), "{{source}}"),
            width=6,
        ),
        _lines(
            "KV cache use",
            "Of the fullest replica.",
            panels.RATIO,
            recorded(rules.KV_USAGE),
            limit=0.95,
        ),
    ]


def _replicas() -> list[Panel]:
    limited = services_series("octavo_operator_service_condition", 'type="ScalingLimited",status="True"')
    return [
        _lines(
            "Ready replicas",
            "That answer requests.",
            panels.COUNT,
            _state("ready"),
            width=8,
        ),
        _lines(
            "Replicas that are missing",
            "Wanted and not ready. For long: no node has room, or they do not start.",
            panels.COUNT,
            f"clamp_min({_state('desired')} - {_state('ready')}, 0)",
            width=8,
        ),
        graph(
            "Held back",
            "Services that need more replicas than they get, by reason.",
            panels.COUNT,
            Query(or_none(total(limited, "reason"), "reason"), "{{reason}}"),
        ),
    ]


def _yield() -> list[Panel]:
    """Where a service has no accelerators, a replica stands in for one."""
    held = highest(services_series("octavo_operator_service_accelerators"), *_BY_SERVICE)
    units = f"(({held} > 0) or {_state('present')})"
    made = total(recorded(rules.GENERATED), *_BY_SERVICE)
    idle = f"{total(recorded(rules.RUNNING), *_BY_SERVICE)} == bool 0"
    return [
        _lines(
            "Accelerators held",
            "By the replicas that are there, whether they do anything or not. The area under a line is GPU-seconds.",
            panels.COUNT,
            held,
        ),
        _lines(
            "Tokens per accelerator-second",
            "What an accelerator yields; a replica where there is none. Low at a full batch: see the roofline. Low at"
            " an empty one: fewer replicas would do.",
            panels.TOKENS,
            ratio(made, units),
            width=6,
        ),
        _lines(
            "Idle accelerators, or replicas",
            "Held by services without a running request; of services that have none, the replicas.",
            panels.COUNT,
            f"{units} * ({idle})",
            width=6,
        ),
        graph(
            "Roofline, and GPU busy",
            "How near decodes come to what the device could do; zero without any for half a minute. `GPU busy` is the"
            " exporter's figure, where it runs: the share of time in which any kernel ran. Busy with a low roofline"
            " ratio: kernels wait for memory or launches, and a larger batch gives more.",
            panels.RATIO,
            Query(
                highest(services_series("octavo_roofline_ratio", 'phase="decode"'), *_BY_SERVICE, "bound"),
                _LEGEND + " {{bound}}",
            ),
            Query(f'avg by (namespace) ({_GPU_BUSY}{{namespace=~"$namespace"}}) / 100', "GPU busy {{namespace}}"),
            width=6,
        ),
    ]


ROWS = {"Services": _overview, "Load": _load, "Replicas": _replicas, "What accelerators yield": _yield}
