"""The four ways as tables in Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import board, load
from .gains import spread
from .load import Load, Way
from .serving import Cell
from .words import Words


def block(words: Words, machine: Mapping[str, Any], asked: Load, cells: Mapping[Way, Cell]) -> str:
    """What stands in a guide: the load, what the client saw, what the board shows."""
    said = words.load.format(
        cpu=machine["cpu"],
        threads=machine["threads"],
        questions=asked.count,
        rate=asked.rate,
        system=load.SYSTEM_TOKENS,
        context=load.CONTEXT_TOKENS.partition(":")[2].replace("-", "–"),
        answer=load.ANSWER_TOKENS,
        others=asked.others,
        long=load.OTHERS_ANSWER,
    )
    return "\n\n".join((said, _client(words, cells), words.board_intro, _board(words, cells)))


def name(words: Words, way: Way) -> str:
    """Of a way, in a few words."""
    return words.joined.format(words.caching[not way.caching], words.chunking[not way.chunking])


def _client(words: Words, cells: Mapping[Way, Cell]) -> str:
    rows = []
    for way, cell in cells.items():
        first, gaps = spread(cell.first_tokens), spread(cell.gaps)
        times = (first.p50, first.p90, first.p99, gaps.p50, gaps.p99, gaps.max)
        rows.append(
            (name(words, way), *map(_ms, times), f"{cell.cached_share:.0%}", f"{max(cell.waiting, default=0):.0f}")
        )
    return _table(words.client_head, rows)


def _board(words: Words, cells: Mapping[Way, Cell]) -> str:
    rows = []
    for way, cell in cells.items():
        *times, hits = (cell.board.figures[str(question)] for question in board.FIGURES)
        rows.append((name(words, way), *map(_ms, times), "" if hits is None else f"{hits:.0%}"))
    return _table(words.board_head, rows)


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{1e3 * seconds:,.0f}" if seconds >= 0.1 else f"{1e3 * seconds:.1f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = "|---" + "|---:" * (len(head) - 1) + "|"
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)])
