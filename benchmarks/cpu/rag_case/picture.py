"""The four ways as one picture: above what the client saw, below what the board's queries drew meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

import published

from . import board
from .gains import spread
from .load import Way
from .serving import Cell
from .table import name
from .words import ENGLISH

# One hue for each setting of the cache, the lighter one for whole prompts.
INK = {
    Way(True, True): "#0f766e",
    Way(False, True): "#c2410c",
    Way(True, False): "#7cc4bc",
    Way(False, False): "#f0a983",
}


def draw(cells: Mapping[Way, Cell], path: Path) -> None:
    """Writes the picture as SVG; equal results give equal bytes."""
    published.save(made(cells), path, "make bench-rag")


def made(cells: Mapping[Way, Cell]) -> Figure:
    """The picture."""
    figure = published.figure(10, 6)
    above, below = figure.subplots(2, 2)
    firsts = {way: spread(cell.first_tokens) for way, cell in cells.items()}
    gaps = {way: spread(cell.gaps) for way, cell in cells.items()}
    _bars(above[0], ("P50", "P90", "P99"), {way: (it.p50, it.p90, it.p99) for way, it in firsts.items()})
    above[0].set(title="client: a question's first token", ylabel="s")
    _bars(above[1], ("P50", "P99"), {way: (1e3 * it.p50, 1e3 * it.p99) for way, it in gaps.items()}, log=True)
    above[1].set(title="client: between two tokens of the others", ylabel="ms")
    for axes, question, scale in zip(below, board.CURVES, ("linear", "log"), strict=True):
        _curves(axes, question, scale, cells)
    handles, labels = above[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def _bars(axes: Axes, groups: Sequence[str], heights: Mapping[Way, Sequence[float]], *, log: bool = False) -> None:
    """One group for each percentile, in it one bar for each way."""
    width, values = 0.8 / len(heights), [*chain.from_iterable(heights.values())]
    axes.set_yscale("log" if log else "linear")  # before its limits, of which it knows no zero
    for place, (way, tops) in enumerate(heights.items()):
        at = [group + (place - (len(heights) - 1) / 2) * width for group in range(len(groups))]
        bars = axes.bar(at, tops, width * 0.92, color=INK[way], label=name(ENGLISH, way))
        axes.bar_label(bars, labels=[_short(top) for top in tops], fontsize=6, padding=1)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim((0.5 * min(values), 1.5 * max(values)) if log else (0, 1.15 * max(values)))
    axes.tick_params(length=0)
    axes.yaxis.set_minor_formatter("")
    axes.yaxis.set_major_formatter("{x:g}")
    published.plain(axes)


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def _curves(axes: Axes, question: board.Question, scale: str, cells: Mapping[Way, Cell]) -> None:
    for way, cell in cells.items():
        points = cell.board.curves[str(question)]
        style = "-" if way.chunking else (0, (4, 2))
        axes.plot(
            [at for at, _ in points], [value for _, value in points], color=INK[way], linewidth=1.2, linestyle=style
        )
    axes.set(title=f"board: {question}", xlabel="s", ylabel="s", yscale=scale)
    if scale == "linear":
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("")
    published.plain(axes)
