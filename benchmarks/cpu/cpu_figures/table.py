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
    lines = ["| | measured | without drafts | at least | aim | | |", "|---|---:|---:|---:|---:|---|---|"]
    for goal in rows:
        numbers = (goal.value, goal.without_drafts, goal.at_least, goal.aim)
        cells = (goal.name, *(_number(number, goal.unit) for number in numbers), MARKS[goal.verdict], goal.note)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(number: float | None, unit: str) -> str:
    return "" if number is None else f"{number:.{0 if number >= 10 else 2}f}{unit}"


def figures(servers: Mapping[str, Mapping[str, Figures]]) -> str:
    """One row a load and server; times in milliseconds."""
    head = "| load | server | tokens/s | first token, mean | P99 | each after it, mean | between pieces, median | P99 |"
    lines = [head, "|---|---|---:|---:|---:|---:|---:|---:|"]
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
    later = (f"{found.tpot_mean * 1e3:.1f}", f"{found.itl_median * 1e3:.1f}", f"{found.itl_p99 * 1e3:.0f}")
    cells = (
        label,
        server,
        f"{found.tokens_per_second:.0f}",
        f"{first * 1e3:.0f}",
        f"{found.ttft_p99 * 1e3:.0f}",
        *(("",) * len(later) if load == loads.PROMPT.name else later),
    )
    return f"| {' | '.join(cells)} |"
