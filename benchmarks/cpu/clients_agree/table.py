"""The clients beside the packets of their own requests, in Markdown, and whether they tell what these say. Pure.

Clients ask in turns, and none asks exactly when another did: packets alone are of the same answers. What the clients
make of answers to the same load is held against each other in `agreement`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .agreement import WITHIN
from .answers import Figures

OURS = "octavo bench"


@dataclass(frozen=True, slots=True)
class Difference:
    """Of a client's figure from that of its packets, as a share of the latter."""

    load: str
    client: str
    figure: str
    share: float

    @property
    def agrees(self) -> bool:
        """Within what is allowed."""
        return abs(self.share) <= WITHIN

    def __str__(self) -> str:
        verdict = "" if self.agrees else f": NOT WITHIN {WITHIN:.0%}"
        return f"{self.load}, {self.client}, {self.figure.replace('_', ' ')}: {self.share:+.2%} of the wire{verdict}"


def differences(load: str, clients: Mapping[str, Figures]) -> list[Difference]:
    """All figures of all clients; none of those that nobody watched."""
    found = []
    for name, it in clients.items():
        if it.wire is not None:
            client, wire = asdict(it.client), asdict(it.wire)
            found += [Difference(load, name, figure, client[figure] / wire[figure] - 1) for figure in client]
    return found


def table(load: str, clients: Mapping[str, Figures]) -> str:
    """One row a client; milliseconds but for the rates, in brackets those on the wire."""
    head = ("prompt", "connections", "tokens/s", "first token, P50", "P99", "per token, P50", "whole answer, P50")
    lines = [f"| {load} | {' | '.join(head)} |", "|---" + "|---:" * len(head) + "|"]
    for name, it in clients.items():
        client = asdict(it.client)
        wire = dict.fromkeys(client, "") if it.wire is None else _bracketed(asdict(it.wire))
        first, per_token, whole = (f"{_ms(client[figure])}{wire[figure]}" for figure in client)
        opened = "" if it.connections is None else f"{it.connections:.0f} for {it.requests:.0f}"
        rates = (f"{it.prompt_tokens:.0f}", opened, f"{it.tokens_per_second:.1f}")
        lines.append(f"| {name} | {' | '.join((*rates, first, _ms(it.first_p99), per_token, whole))} |")
    return "\n".join(lines)


def _bracketed(times: Mapping[str, float]) -> dict[str, str]:
    return {figure: f" [{_ms(seconds)}]" for figure, seconds in times.items()}


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f}" if seconds < 0.1 else f"{1e3 * seconds:,.1f}"


def document(load: str, clients: Mapping[str, Figures], runs: Mapping[str, Sequence[Figures]]) -> dict[str, Any]:
    """For JSON: the medians, each run, and what was compared."""
    return {
        "load": load,
        "medians": {name: asdict(it) for name, it in clients.items()},
        "runs": {name: [asdict(run) for run in found] for name, found in runs.items()},
        "differences": [asdict(each) | {"agrees": each.agrees} for each in differences(load, clients)],
    }
