"""The three ways as one picture: who runs, what is taken and what is used, and what comes of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

import published

from .serving import POOL_TOKENS, Watched

INK = ("#94a3b8", "#c2410c", "#0f766e")
POINTS = 240  # of a line: a picture has no more columns to show


def draw(ways: Sequence[Watched], path: Path) -> None:
    """Writes the picture as SVG; equal results give equal bytes."""
    figure = published.figure(11, 5)
    cells = figure.subplots(2, 3)
    for axes, watched, ink in zip(cells[0], ways, INK, strict=True):
        _memory(axes, watched, ink)
    _running(cells[1][0], ways)
    _bars(cells[1][1], "tokens/s", ways, [watched.tokens_per_second for watched in ways], "{:.0f}")
    _bars(cells[1][2], "share of taken slots without a token", ways, [watched.waste for watched in ways], "{:.0%}")
    published.save(figure, path, "make bench-why")


def _memory(axes: Axes, watched: Watched, ink: str) -> None:
    """Slots of the pool: taken (light) and holding a token (dark)."""
    moments = watched.moments[:: max(1, len(watched.moments) // POINTS)]
    times = [moment.seconds for moment in moments]
    taken = [moment.reserved if watched.way.reserves else moment.paged for moment in moments]
    axes.fill_between(times, taken, step="post", color=ink, alpha=0.25, linewidth=0, label="taken")
    axes.fill_between(
        times, [moment.tokens for moment in moments], step="post", color=ink, linewidth=0, label="with a token"
    )
    axes.axhline(POOL_TOKENS, color="#334155", linewidth=0.6, linestyle=(0, (3, 2)))
    axes.set(title=watched.way.name, ylim=(0, POOL_TOKENS * 1.08), xlabel="s", ylabel="token slots of the pool")
    axes.legend(frameon=False, loc="center right", fontsize=7)
    published.plain(axes)


def _running(axes: Axes, ways: Sequence[Watched]) -> None:
    for watched, ink in zip(ways, INK, strict=True):
        moments = watched.moments[:: max(1, len(watched.moments) // POINTS)]
        axes.step(
            [moment.seconds for moment in moments],
            [moment.running for moment in moments],
            where="post",
            color=ink,
            linewidth=1.2,
            label=watched.way.name,
        )
    axes.set(title="requests that run at once", xlabel="s", ylim=(0, None))
    axes.legend(frameon=False, fontsize=7)
    published.plain(axes)


def _bars(axes: Axes, title: str, ways: Sequence[Watched], heights: Sequence[float], form: str) -> None:
    bars = axes.bar(range(len(ways)), heights, 0.7, color=INK)
    axes.bar_label(bars, labels=[form.format(height) for height in heights], padding=2)
    axes.set_xticks(range(len(ways)), [re.sub(r" batch\w*, ", ",\n", watched.way.name) for watched in ways], fontsize=7)
    axes.set(title=title, ylim=(0, max(heights) * 1.15))
    axes.tick_params(length=0)
    published.plain(axes)
