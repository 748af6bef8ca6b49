"""What each of the two settings gained, by the client's figures and by the board's. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo_engine.bench.quantiles import Spread

from . import board
from .load import Way
from .serving import Cell

VISIBLE = 0.8
"""Of what it was without the setting: less can be seen, more could be a difference from one run to the next."""


@dataclass(frozen=True, slots=True)
class Gain:
    """A figure with a setting on and off, all else alike, in seconds."""

    setting: str
    figure: str
    by: str
    on: float
    off: float

    @property
    def visible(self) -> bool:
        """Whether the setting has lowered it enough to be seen."""
        return self.on <= VISIBLE * self.off

    def __str__(self) -> str:
        ratio = self.on / self.off if self.off else float("inf")
        what = f"{self.setting}: {self.figure} by {self.by} {1e3 * self.on:.0f} ms instead of {1e3 * self.off:.0f} ms"
        return f"{what}, {ratio:.2f} of it{'' if self.visible else ': NOT VISIBLY LOWER'}"


def gains(cells: Mapping[Way, Cell]) -> list[Gain]:
    """Caching lowers the time to the first token, chunks the slowest gaps of the others: each beside the default."""
    default, computed, whole = (cells[way] for way in (Way(True, True), Way(False, True), Way(True, False)))
    caching, chunking = "prefix caching", "chunked prefill"
    return [
        Gain(caching, "first token, P50", "the client", _first(default).p50, _first(computed).p50),
        Gain(caching, "first token, P90", "the client", _first(default).p90, _first(computed).p90),
        # To the board readers, who ask for little, are requests like all others: they fill the lower half.
        Gain(caching, "first token, P90", "the board", *_told(board.FIRST["P90"], default, computed)),
        Gain(chunking, "between tokens, P99", "the client", _gaps(default).p99, _gaps(whole).p99),
        Gain(chunking, "between tokens, P99", "the board", *_told(board.BETWEEN["P99"], default, whole)),
    ]


def _first(cell: Cell) -> Spread:
    return spread(cell.first_tokens)


def _gaps(cell: Cell) -> Spread:
    return spread(cell.gaps)


def _told(question: board.Question, default: Cell, without: Cell) -> tuple[float, float]:
    on, off = (cell.board.figures[str(question)] for cell in (default, without))
    if on is None or off is None:
        raise ValueError(f"the board has no value for {question}")
    return on, off


def spread(values: tuple[float, ...]) -> Spread:
    """The distribution; raises ValueError where nothing was measured."""
    found = Spread.of(values)
    if found is None:
        raise ValueError("nothing was measured")
    return found
