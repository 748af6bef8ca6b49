"""Charts as plain SVG, for a page that needs nothing else. Pure: numbers to text. Colours are the page's variables."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

WIDTH, HEIGHT = 520, 240
LEFT, RIGHT, TOP, BOTTOM = 66, 12, 30, 40
INK = ("var(--one)", "var(--two)", "var(--three)")
HEADROOM = 1.04  # over the highest value
POINTS = 1_500  # of a line: more cannot be told apart
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """Points in order of x; `marks` shows each alone, `line` joins them, `steps` holds each value until the next."""

    name: str
    points: Sequence[Point]
    kind: Literal["line", "steps", "marks"] = "line"


@dataclass(frozen=True, slots=True)
class Axis:
    """From values to pixels. A logarithmic one has only values above 0."""

    low: float
    high: float
    first: float  # pixel of `low`
    last: float
    log: bool = False

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high, value = (math.log10(x) if self.log else x for x in (self.low, self.high, max(value, self.low)))
        return self.first + (self.last - self.first) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round values within it."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(powers) <= 4 else (1,)
            found = [at for p in powers for s in steps if self.low <= (at := s * 10.0**p) <= self.high * (1 + 1e-9)]
            if len(found) > 1:
                return found  # else they lie so close that even steps are right
        step = _round_step(max((self.high - self.low) / 5, 1e-300))
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough * (1 - 1e-9))


def chart(
    title: str, x_label: str, y_label: str, series: Sequence[Series], *, log_x: bool = False, headroom: float = HEADROOM
) -> str:
    """One chart; text in place of it where there is nothing to show."""
    shown = [Series(each.name, _shown(each, log_x), each.kind) for each in series]
    shown = [each for each in shown if each.points]
    if not shown:
        return f'<figure class="none"><figcaption>{html.escape(title)}</figcaption>nothing was measured</figure>'
    xs = [x for each in shown for x, _ in each.points]
    ys = [y for each in shown for _, y in each.points]
    across = _axis(min(xs) if log_x else min(0.0, *xs), max(xs), LEFT, WIDTH - RIGHT, log=log_x)
    up = _axis(min(0.0, *ys), headroom * max(ys), HEIGHT - BOTTOM, TOP)
    parts = [*_frame(title, x_label, y_label, across, up), *_drawn(shown, across, up), *_legend(shown)]
    label = html.escape(f"{title}: {y_label} over {x_label}", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _shown(series: Series, log_x: bool) -> list[Point]:
    """What is drawn: finite, on a logarithmic axis above 0, and no more than can be seen."""
    points = [(x, y) for x, y in series.points if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_x)]
    step = max(1, -(-len(points) // POINTS))
    return points[::step] + (points[-1:] if step > 1 else [])


def _axis(low: float, high: float, first: float, last: float, *, log: bool = False) -> Axis:
    if log and high < low * 1.01:  # all values are as good as one
        high = low * 10
    elif not log and high - low < 1e-9:
        high = low + 1
    return Axis(low, high, first, last, log)


def _frame(title: str, x_label: str, y_label: str, across: Axis, up: Axis) -> Iterator[str]:
    yield _text(LEFT, 14, title, "title")
    for value in up.ticks():
        y = up.at(value)
        yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 6, y + 3, number(value), "end")
    for value in across.ticks():
        x = across.at(value)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield _text(x, HEIGHT - BOTTOM + 14, number(value), "middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle")
    yield f'<g transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)">{_text(0, 0, y_label, "middle")}</g>'


def _drawn(series: Sequence[Series], across: Axis, up: Axis) -> Iterator[str]:
    for each, ink in zip(series, _inks(len(series)), strict=True):
        pixels = [(across.at(x), up.at(y)) for x, y in each.points]
        if each.kind == "marks":
            yield "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{ink}"/>' for x, y in pixels)
            continue
        path = f"M{pixels[0][0]:.1f} {pixels[0][1]:.1f}" + "".join(
            (f"H{x:.1f}V{y:.1f}" if each.kind == "steps" else f"L{x:.1f} {y:.1f}") for x, y in pixels[1:]
        )
        yield f'<path d="{path}" fill="none" stroke="{ink}" stroke-width="1.5"/>'


def _legend(series: Sequence[Series]) -> Iterator[str]:
    """The names, from the right, where there are several."""
    if len(series) < 2:
        return
    x = float(WIDTH - RIGHT)
    for each, ink in reversed(list(zip(series, _inks(len(series)), strict=True))):
        x -= 6.6 * len(each.name) + 22
        yield f'<rect x="{x:.1f}" y="7" width="8" height="8" fill="{ink}"/>{_text(x + 11, 15, each.name)}'


def _inks(count: int) -> list[str]:
    return [INK[index % len(INK)] for index in range(count)]


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}>{html.escape(text)}</text>'


def number(value: float) -> str:
    """A tick's value, short."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}" if abs(value) >= 1e-9 else "0"
