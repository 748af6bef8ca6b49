"""The clients beside each other, in Markdown, and whether they agree. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .answers import Figures

WITHIN = 0.05
"""Of ours."""

COMPARED = ("tokens_per_second", "first_p50", "per_token_p50", "whole_p50")
OURS, WIRE = "octavo bench", "the wire"


@dataclass(frozen=True, slots=True)
class Difference:
    """Of another client's figure from ours, as a share of ours."""

    load: str
    client: str
    figure: str
    share: float

    @property
    def agrees(self) -> bool:
        """Within what is allowed."""
        return abs(self.share) <= WITHIN


def differences(load: str, clients: Mapping[str, Figures]) -> list[Difference]:
    """All of those that are compared; first of all with the wire, where somebody watched."""
    ours = clients[OURS]
    wire = (
        [] if ours.on_the_wire is None else [Difference(load, WIRE, "first_p50", ours.on_the_wire / ours.first_p50 - 1)]
    )
    return wire + [
        Difference(load, name, figure, getattr(theirs, figure) / getattr(ours, figure) - 1)
        for name, theirs in clients.items()
        if name != OURS
        for figure in COMPARED
    ]


def nearest_to_the_wire(clients: Mapping[str, Figures]) -> str | None:
    """Whose first tokens are nearest to those on the wire; None where nobody watched."""
    added = {name: abs(it.beyond_the_wire) for name, it in clients.items() if it.beyond_the_wire is not None}
    return min(added, key=lambda name: added[name]) if added else None


def table(load: str, clients: Mapping[str, Figures]) -> str:
    """One row a client; milliseconds but for the rates."""
    head = ("client", "tokens/s", "first token, P50", "P99", "the same on the wire, P50", "added by the client")
    lines = [f"| {load}: {' | '.join(head)} | per token, P50 | whole answer, P50 |", "|---" + "|---:" * 7 + "|"]
    for name, it in clients.items():
        wire = ("", "") if it.on_the_wire is None else (_ms(it.on_the_wire), f"{1e3 * (it.beyond_the_wire or 0):.2f}")
        cells = (f"{it.tokens_per_second:.1f}", _ms(it.first_p50), _ms(it.first_p99), *wire)
        lines.append(f"| {name} | {' | '.join(cells)} | {1e3 * it.per_token_p50:.2f} | {_ms(it.whole_p50)} |")
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}" if seconds < 1 else f"{1e3 * seconds:,.0f}"


def words(difference: Difference) -> str:
    """One line."""
    verdict = "" if difference.agrees else f": NOT WITHIN {WITHIN:.0%}"
    name = difference.figure.replace("_", " ")
    return f"{difference.load}, {difference.client}, {name}: {difference.share:+.1%}{verdict}"


def document(load: str, clients: Mapping[str, Figures], runs: Mapping[str, list[Any]]) -> dict[str, Any]:
    """For JSON: each run, and what was compared."""
    return {
        "load": load,
        "runs": runs,
        "nearest_to_the_wire": nearest_to_the_wire(clients),
        "differences": [
            {"client": each.client, "figure": each.figure, "share": each.share, "agrees": each.agrees}
            for each in differences(load, clients)
        ],
    }
