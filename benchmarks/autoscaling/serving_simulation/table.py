"""Scores as a table in Markdown."""

from __future__ import annotations

from collections.abc import Iterable

from .comparison import Result

HEAD = (
    "| load | policy | late, % | over the objective, s | wait p99, s | replica hours | peak over need | reversals "
    "| refused | lost |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def markdown(results: Iterable[Result]) -> str:
    """One row for each scenario and policy."""
    lines, before = [HEAD], ""
    for result in results:
        name, figures = result.scenario.name, result.score
        cells = (
            name if name != before else "",
            result.policy,
            f"{100 * figures.late_share:.1f}",
            f"{figures.late_seconds:.0f}",
            f"{figures.wait_p99:.0f}",
            f"{figures.replica_hours:.2f}",
            f"{figures.overshoot:+.1f}",
            f"{figures.reversals:.1f}",
            f"{figures.refused:.0f}",
            f"{figures.lost:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
        before = name
    return "\n".join(lines)
