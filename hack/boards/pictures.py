"""Draws a board from a real Prometheus, with matplotlib: the same panels in their places, the same queries.

For pages about the boards, where no Grafana is at hand. What it draws is no pixel of Grafana's: axes, names and values
are the same, looks are not.

    PYTHONPATH=hack python -m boards.pictures dashboards/service.json --prometheus http://127.0.0.1:9090 \\
        --set namespace=default --set service=assistant --minutes 10 --to service.svg
"""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from boards.asking import Line, Span, ask
from boards.tables import tabulated

Panel = Mapping[str, Any]
Answers = Callable[[Panel], Sequence[Line]]

COLUMNS = 24  # of a board's grid
_INCHES_WIDE, _INCHES_A_ROW = 18.0, 0.3
_POINTS = 60
_TITLE, _SMALL = 9, 6.5
_MOST_NAMES = 8
_LEAST_WIDTH = 2  # columns of the grid for one of a table; where they are too many, they are drawn as lines
_LIMIT_COLOUR = "#c4162a"
_ABOVE, _BELOW = 1.08, -0.03
"""How far an axis reaches beyond its lines, as shares of the highest value: one at zero or at the top is seen."""


def draw(board: Mapping[str, Any], answers: Answers, span: Span) -> Figure:
    """The whole board.

    Args:
        answers: what Prometheus says to all targets of a panel.
        span: what lines are drawn over.
    """
    places = [panel["gridPos"] for panel in board["panels"]]
    rows = max(place["y"] + place["h"] for place in places)
    figure = Figure(figsize=(_INCHES_WIDE, rows * _INCHES_A_ROW))
    for panel in board["panels"]:
        axes = figure.add_axes(_place(panel["gridPos"], rows))
        found = [] if panel["type"] in ("row", "text") else answers(panel)
        _KINDS[panel["type"]](axes, panel, found, span)
    return figure


def _place(place: Mapping[str, int], rows: int) -> tuple[float, float, float, float]:
    """Left, bottom, width and height as shares of the figure, with room for the title above and the axis below."""
    left, top, width, height = place["x"], place["y"], place["w"], place["h"]
    above, below, aside = (0.1, 0.0, 0.0) if height == 1 else (1.0, 2.0, 0.9)
    return (
        (left + aside) / COLUMNS,
        1 - (top + height - below) / rows,
        (width - aside - 0.2) / COLUMNS,
        (height - above - below) / rows,
    )


def _row(axes: Axes, panel: Panel, _: Sequence[Line], __: Span) -> None:
    axes.axis("off")
    axes.text(0, 0.3, panel["title"], fontsize=_TITLE + 3, fontweight="bold")


def _words(axes: Axes, panel: Panel, _: Sequence[Line], __: Span) -> None:
    _headline(axes, panel)
    axes.axis("off")
    parts = panel["options"]["content"].replace("**", "").replace("`", "").split("\n\n")
    told = "\n\n".join(textwrap.fill(part, 46) for part in parts)
    axes.text(0, 0.97, told, fontsize=_SMALL + 1, va="top")


def _graph(axes: Axes, panel: Panel, found: Sequence[Line], span: Span) -> None:
    _headline(axes, panel)
    for line in found:
        axes.plot([(at - span.end) / 60 for at, _ in line.points], [value for _, value in line.points], linewidth=1)
    defaults = panel["fieldConfig"]["defaults"]
    for step in defaults.get("thresholds", {}).get("steps", ())[1:]:
        axes.axhline(step["value"], color=_LIMIT_COLOUR, linewidth=0.7, linestyle="--")
    highest = max((value for line in found for _, value in line.points), default=0.0) or 1.0
    axes.set_xlim((span.start - span.end) / 60, 0)
    axes.set_ylim(highest * _BELOW, highest * _ABOVE)
    axes.grid(linewidth=0.3)
    axes.locator_params(nbins=4)
    axes.tick_params(labelsize=_SMALL)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, defaults["unit"])))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda minutes, _: f"{minutes:g} min"))
    if found:
        _legend_below(axes, [line.name for line in found[:_MOST_NAMES]])


def _legend_below(axes: Axes, names: Sequence[str]) -> None:
    """Where it hides no line."""
    axes.legend(names, loc="upper left", bbox_to_anchor=(-0.02, -0.1), ncol=4, fontsize=_SMALL, frameon=False)


def _bars(axes: Axes, panel: Panel, found: Sequence[Line], _: Span) -> None:
    _headline(axes, panel)
    there = [line for line in found if line.points]
    axes.barh([line.name for line in there], [line.points[-1][1] for line in there])
    axes.tick_params(labelsize=_SMALL)
    unit = panel["fieldConfig"]["defaults"]["unit"]
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit)))


def _table(axes: Axes, panel: Panel, found: Sequence[Line], _: Span) -> None:
    _headline(axes, panel)
    axes.axis("off")
    headings, rows = tabulated(panel, found, shown)
    if not headings:
        return
    lines = [headings, *rows]
    if panel["gridPos"]["w"] < len(headings) * _LEAST_WIDTH:
        lines = [list(column) for column in zip(*lines, strict=True)]
    drawn = axes.table(lines, cellLoc="left", loc="upper left", edges="horizontal")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(_SMALL)
    drawn.auto_set_column_width(range(len(lines[0])))


_KINDS: dict[str, Callable[[Axes, Panel, Sequence[Line], Span], None]] = {
    "row": _row,
    "text": _words,
    "timeseries": _graph,
    "bargauge": _bars,
    "table": _table,
}


def _headline(axes: Axes, panel: Panel) -> None:
    axes.set_title(panel["title"], fontsize=_TITLE, loc="left", pad=3)


def shown(value: float, unit: str) -> str:
    """A value with its unit, short enough for an axis."""
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{value * 1000:.3g} ms"
    number = f"{value / 1000:.3g}k" if abs(value) >= 1000 else f"{value:.3g}"
    words = {"s": " s", "short": "", "reqps": " req/s"}.get(unit, " " + unit.removeprefix("suffix: "))
    return number + words


def main() -> int:
    """Ask, draw, write; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m boards.pictures", description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("board", type=Path, help="a file of dashboards/")
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--set", action="append", default=[], metavar="VARIABLE=VALUE", help="a variable of the board")
    parser.add_argument("--minutes", type=float, default=30.0, help="how far back")
    parser.add_argument("--until", type=float, default=None, metavar="SECONDS", help="Unix time; now unless given")
    parser.add_argument("--rate-interval", default="1m", help="window of rates: at least four scrapes")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help=".svg or .png")
    options = parser.parse_args()
    given = dict(pair.partition("=")[::2] for pair in options.set)
    variables = {"__rate_interval": options.rate_interval, "pod": ".*", "percentile": "0.99"} | given
    end = options.until or time.time()
    span = Span(end - options.minutes * 60, end, max(1.0, options.minutes * 60 / _POINTS))

    def answers(panel: Panel) -> list[Line]:
        return [line for target in panel["targets"] for line in ask(options.prometheus, target, variables, span)]

    mpl.rcParams["svg.hashsalt"] = "octavo"  # the same answers give the same file
    mpl.rcParams["svg.fonttype"] = "none"  # words stay words: small, and found by a search
    figure = draw(json.loads(options.board.read_text(encoding="utf-8")), answers, span)
    figure.savefig(options.to, metadata={"Date": None} if options.to.suffix == ".svg" else None, dpi=80)
    return 0


if __name__ == "__main__":
    sys.exit(main())
