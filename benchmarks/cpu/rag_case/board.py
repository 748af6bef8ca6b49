"""What the Service board's own queries say of a load, asked of a real Prometheus that has watched the server.

Owns the small Prometheus of a measurement. Knows no PromQL: the expressions are those of `dashboards/service.json`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boards.asking import Line, Span, ask
from cpu_figures.servers import Recipe, Server, free_port
from node import binaries, programs
from node.config import Settings

SERVICE_BOARD = Path(__file__).parents[3] / "dashboards" / "service.json"
NAMESPACE = "bench-rag"
SCRAPE_SECONDS = 2
WINDOW_SECONDS = 20
"""Of the curves' rates: ten scrapes."""

Target = Mapping[str, Any]
Point = tuple[float, float]
Ask = Callable[[Target, Mapping[str, str], Span], Sequence[Line]]


@dataclass(frozen=True, slots=True)
class Question:
    """One line of one panel."""

    panel: str
    legend: str

    def __str__(self) -> str:
        return f"{self.panel}, {self.legend}"


FIRST = {share: Question("Time to first token", share) for share in ("P50", "P90", "P99")}
BETWEEN = {share: Question("Inter-token latency", share) for share in ("P50", "P99")}
QUEUED = Question("Time in the queue", "P99")
HITS = Question("Prefix cache hit ratio", "hit ratio")
FIGURES = (*FIRST.values(), *BETWEEN.values(), QUEUED, HITS)
CURVES = (FIRST["P90"], BETWEEN["P99"])


@dataclass(frozen=True, slots=True)
class Told:
    """`figures` are of the whole time, `curves` of a moving window: seconds from the beginning, and values in the
    panel's unit. By question, as text."""

    figures: Mapping[str, float | None]
    curves: Mapping[str, Sequence[Point]]


def targets() -> dict[Question, Target]:
    """The board's queries; raises KeyError where the board has no such line any more."""
    panels = {panel["title"]: panel for panel in json.loads(SERVICE_BOARD.read_text(encoding="utf-8"))["panels"]}
    wanted = dict.fromkeys((*FIGURES, *CURVES))
    return {each: _target(panels[each.panel], each.legend) for each in wanted}


def _target(panel: Mapping[str, Any], legend: str) -> Target:
    found: dict[str, Target] = {target.get("legendFormat", ""): target for target in panel["targets"]}
    return found[legend]


def told(asked: Ask, service: str, begin: float, end: float) -> Told:
    """Both, of the time from `begin` to `end`, in Unix seconds."""
    wanted, chosen = targets(), {"namespace": NAMESPACE, "service": service, "pod": ".*"}
    whole = chosen | {"__rate_interval": f"{round(end - begin)}s"}
    moving = chosen | {"__rate_interval": f"{WINDOW_SECONDS}s"}
    at_the_end, throughout = Span(end, end, 1.0), Span(begin, end, float(SCRAPE_SECONDS))
    return Told(
        {str(each): _last(asked(wanted[each], whole, at_the_end)) for each in FIGURES},
        {str(each): _points(asked(wanted[each], moving, throughout), begin) for each in CURVES},
    )


def _last(lines: Sequence[Line]) -> float | None:
    """None where there is no such series, or no number in it."""
    return lines[0].points[-1][1] if lines and lines[0].points else None


def _points(lines: Sequence[Line], begin: float) -> list[Point]:
    return [(at - begin, value) for line in lines[:1] for at, value in line.points]


def configuration(service: str, management_port: int) -> dict[str, Any]:
    """Prometheus' own, with the labels that a PodMonitor would give."""
    labels = {"namespace": NAMESPACE, "inferenceservice": service, "pod": service}
    target = {"targets": [f"127.0.0.1:{management_port}"], "labels": labels}
    return {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": f"{SCRAPE_SECONDS}s"},
        "scrape_configs": [{"job_name": "octavo", "static_configs": [target]}],
    }


@contextmanager
def watching(service: str, management_port: int) -> Iterator[Ask]:
    """A Prometheus that scrapes one server while the block lasts; it is built at first use, which takes minutes."""
    program = binaries.built(Settings.from_environment(), programs.PROMETHEUS)
    with tempfile.TemporaryDirectory() as scratch:
        file, port = Path(scratch) / "prometheus.json", free_port()
        file.write_text(json.dumps(configuration(service, management_port)), encoding="utf-8")  # JSON is YAML
        url = f"http://127.0.0.1:{port}"
        flags = {"config.file": file, "storage.tsdb.path": Path(scratch) / "data", "web.listen-address": url[7:]}
        command = [str(program), *(f"--{name}={value}" for name, value in flags.items()), "--log.level=warn"]
        with Server(Recipe("prometheus", command, f"{url}/-/ready", port)):
            yield lambda target, variables, span: ask(url, target, variables, span)
