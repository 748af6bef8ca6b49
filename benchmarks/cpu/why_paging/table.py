"""The three ways as a table in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from .serving import Watched


def table(ways: Sequence[Watched]) -> str:
    """One row a way, in Markdown."""
    lines = [
        "| | tokens/s | steps | mean wait for a whole answer, s | run at once, at most | slots without a token |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for watched in ways:
        cells = (
            f"{watched.tokens_per_second:.0f}",
            f"{len(watched.moments)}",
            f"{mean(watched.waits):.1f}",
            f"{watched.most_running}",
            f"{watched.waste:.0%}",
        )
        lines.append(f"| {watched.way.name} | {' | '.join(cells)} |")
    return "\n".join(lines)
