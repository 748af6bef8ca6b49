"""The gaps between one answer's tokens over time, one strip for each setting, as an SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

Gap = tuple[float, float]
"""When a token came, in seconds after the long prompt did, and how long after the one before."""

WIDTH, STRIP, LEFT, TOP, BOTTOM = 760, 120, 150, 34, 34
INK, FAINT, MARK = "#444", "#ccc", "#1f77b4"


def picture(strips: Mapping[str, Sequence[Gap]], title: str) -> str:
    """The document; all strips have the same scales, the gaps' being logarithmic."""
    end = max(at for gaps in strips.values() for at, _ in gaps)
    begin = min(at for gaps in strips.values() for at, _ in gaps)
    gaps = [gap for strip in strips.values() for _, gap in strip]
    low, high = math.floor(math.log10(min(gaps))), math.ceil(math.log10(max(gaps)))
    height = TOP + STRIP * len(strips) + BOTTOM

    def x(at: float) -> float:
        return LEFT + (at - begin) / (end - begin) * (WIDTH - LEFT - 20)

    def y(strip: int, gap: float) -> float:
        return TOP + STRIP * (strip + 1) - 10 - (math.log10(gap) - low) / (high - low) * (STRIP - 30)

    lines = [_text(LEFT, 18, title, "start", 13)]
    for index, (name, strip) in enumerate(strips.items()):
        lines += [_text(10, TOP + STRIP * index + 60, name, "start", 12)]
        for power in range(low, high + 1):
            level = y(index, 10.0**power)
            lines += [
                _line(LEFT, level, WIDTH - 20, level),
                _text(LEFT - 6, level + 4, _duration(10.0**power), "end", 10),
            ]
        lines += [_line(x(0), y(index, 10.0**high), x(0), y(index, 10.0**low))]
        lines += [f'<circle cx="{x(at):.1f}" cy="{y(index, gap):.1f}" r="1.8" fill="{MARK}"/>' for at, gap in strip]
    lines += _seconds(begin, end, x, height - BOTTOM + 14)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *lines, "</svg>"]) + "\n"


def _seconds(begin: float, end: float, x: Callable[[float], float], level: float) -> Iterator[str]:
    step = 10.0 ** math.floor(math.log10(end - begin))
    for number in range(math.ceil(begin / step), math.floor(end / step) + 1):
        yield _text(x(number * step), level, f"{number * step:g} s", "middle", 10)


def _duration(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{FAINT}"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{INK}" text-anchor="{anchor}">{escape(text)}</text>'
