"""Scores as a table in Markdown, and the place in a document where it belongs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .comparison import Result

HEAD = (
    "| load | policy | late, % | over the objective, s | wait p99, s | replica hours | peak over need | reversals "
    "| refused | lost |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)
BEGIN, END = "<!-- table: make bench-autoscaling -->", "<!-- end of table -->"


def markdown(results: Iterable[Result]) -> str:
    """One row for each scenario and policy."""
    lines, before = [HEAD], ""
    for result in results:
        name, figures = result.scenario.name, result.score
        cells = (
            f"{name}, needs {result.needed:.1f}" if name != before else "",
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


def replace_in(document: Path, table: str) -> None:
    """Puts the table between its marks; raises ValueError where the document has none."""
    text = document.read_text(encoding="utf-8")
    head, begun, rest = text.partition(BEGIN)
    _, ended, tail = rest.partition(END)
    if not (begun and ended):
        raise ValueError(f"{document} has no marks {BEGIN} and {END}")
    document.write_text(f"{head}{BEGIN}\n\n{table}\n\n{END}{tail}", encoding="utf-8")
