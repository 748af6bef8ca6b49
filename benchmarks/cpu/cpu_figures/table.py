"""The figures as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from . import loads
from .goals import Goal
from .results import Figures

MARKS = {"aim": "aim reached", "at least": "reached", "short": "**short**"}


def goals(rows: Sequence[Goal]) -> str:
    """One row a goal."""
    lines = ["| | measured | at least | aim | | |", "|---|---:|---:|---:|---|---|"]
    for goal in rows:
        value, least, aim = (
            f"{number:.{_digits(number)}f}{goal.unit}" for number in (goal.value, goal.at_least, goal.aim)
        )
        lines.append(f"| {goal.name} | {value} | {least} | {aim} | {MARKS[goal.verdict]} | {goal.note} |")
    return "\n".join(lines)


def _digits(number: float) -> int:
    return 0 if number >= 10 else 2


def figures(servers: Mapping[str, Mapping[str, Figures]]) -> str:
    """One row a load and server; times in milliseconds."""
    head = "| load | server | tokens/s | first token, mean | P99 | between tokens, median | P99 |"
    lines = [head, "|---|---|---:|---:|---:|---:|---:|"]
    names = dict.fromkeys(name for by_load in servers.values() for name in by_load)
    for name in names:
        for server, by_load in servers.items():
            if name in by_load:
                lines.append(_row(name, server, by_load[name]))
    return "\n".join(lines)


def _row(load: str, server: str, found: Figures) -> str:
    first = found.ttft_mean
    label = load
    if load == loads.PREFIX.name:
        cut = loads.PREFIX.streams
        first, label = mean(found.ttfts[cut:]), f"{load} (cold {mean(found.ttfts[:cut]) * 1e3:.0f} ms)"
    between = ("", "") if load == loads.PROMPT.name else (f"{found.itl_median * 1e3:.1f}", f"{found.itl_p99 * 1e3:.0f}")
    cells = (
        label,
        server,
        f"{found.tokens_per_second:.0f}",
        f"{first * 1e3:.0f}",
        f"{found.ttft_p99 * 1e3:.0f}",
        *between,
    )
    return f"| {' | '.join(cells)} |"
