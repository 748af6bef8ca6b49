"""Whether two clients tell the same by one definition, with the packets of both as witness. Pure; seconds.

Even of two that ask one server at the same time, no answer is the other's: what the packets say of theirs and of ours
differs by chance, and by when each of them asked. The rest is what they tell differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .answers import Answer
from .definitions import Definition

WITHIN = 0.05


@dataclass(frozen=True, slots=True)
class Told:
    """All answers of a client to a load, as it tells them, and as packets: none where nobody could watch."""

    answers: Sequence[Answer]
    packets: Sequence[Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """A figure that a client reports, of its own answers, and of what `octavo bench` recorded of others to the same
    load. `wire` is the same of the packets of both, theirs first."""

    load: str
    client: str
    figure: str  # as the client calls it
    theirs: float
    ours: float
    wire: tuple[float, float] | None

    @property
    def share(self) -> float:
        """By how much theirs is more."""
        return self.theirs / self.ours - 1

    @property
    def rest(self) -> float:
        """The same, each beside its own packets; without these, as it is."""
        answered = 1.0 if self.wire is None else self.wire[0] / self.wire[1]
        return self.theirs / self.ours / answered - 1

    @property
    def agrees(self) -> bool:
        """Within what is allowed."""
        return abs(self.rest) <= WITHIN


def agreements(load: str, ours: Told, theirs: Told, client: str, definitions: Sequence[Definition]) -> list[Agreement]:
    """Each figure of the other client."""
    return [
        Agreement(
            load=load,
            client=client,
            figure=each.name,
            theirs=each.of(theirs.answers),
            ours=each.of(ours.answers),
            wire=(each.of(theirs.packets), each.of(ours.packets)) if theirs.packets and ours.packets else None,
        )
        for each in definitions
    ]


def table(found: Sequence[Agreement]) -> str:
    """Markdown, a row each; milliseconds, in brackets those on the wire."""
    head = ("load", "a client's figure", "as it reports it", "`octavo bench` by the same definition", "difference")
    lines = [f"| {' | '.join(head)} | beside its own packets |", "|---|---|---:|---:|---:|---:|"]
    for each in found:
        theirs, ours, share = _ms(each.theirs), _ms(each.ours), f"{100 * each.share:+.1f} %"
        if each.wire is not None:
            theirs, ours = (f"{told} [{_ms(seen)}]" for told, seen in zip((theirs, ours), each.wire, strict=True))
            share += f" [{100 * (each.wire[0] / each.wire[1] - 1):+.1f} %]"
        rest = f"{100 * each.rest:+.1f} %" + ("" if each.agrees else ": more than 5 %")
        lines.append(f"| {each.load} | {each.client}: {each.figure} | {theirs} | {ours} | {share} | {rest} |")
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f}" if seconds < 0.1 else f"{1e3 * seconds:,.1f}"
