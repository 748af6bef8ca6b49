"""The comparison as one picture: tokens a second and the slowest waits, server beside server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from matplotlib.axes import Axes

import published

from . import loads
from .loads import Load
from .results import Figures
from .servers import NO_DRAFTS, OCTAVO, VLLM

INK = {OCTAVO: "#0f766e", NO_DRAFTS: "#5eada4", VLLM: "#c2410c"}
SHOWN = (*loads.DECODES, loads.CHATS, loads.LONG)
PANELS: tuple[tuple[str, bool, Callable[[Figures], float]], ...] = (
    ("tokens/s", False, lambda found: found.tokens_per_second),
    ("P99 time to first token, ms", True, lambda found: found.ttft_p99 * 1e3),
    ("P99 between pieces, ms", True, lambda found: found.itl_p99 * 1e3),
)


def draw(servers: Mapping[str, Mapping[str, Figures]], path: Path) -> None:
    """Writes the picture as SVG; equal figures give equal bytes."""
    figure = published.figure(13, 3.2)
    for axes, (title, logarithmic, value) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        _panel(axes, servers, value)
        axes.set_title(title)
        if logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter("{x:.0f}")
            axes.yaxis.set_minor_formatter("")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    published.save(figure, path, "make bench-cpu")


def _panel(axes: Axes, servers: Mapping[str, Mapping[str, Figures]], value: Callable[[Figures], float]) -> None:
    shown = [load for load in SHOWN if any(load.name in found for found in servers.values())]
    width = 0.8 / len(servers)
    for place, (server, by_load) in enumerate(servers.items()):
        at = [number + (place - (len(servers) - 1) / 2) * width for number in range(len(shown))]
        heights = [value(by_load[load.name]) if load.name in by_load else 0 for load in shown]
        bars = axes.bar(at, heights, width * 0.92, color=INK.get(server), label=server)
        axes.bar_label(bars, labels=[f"{height:.0f}" if height else "" for height in heights], fontsize=6, padding=1)
    axes.set_xticks(range(len(shown)), [f"{load.streams}\n{_kind(load)}" for load in shown])
    axes.tick_params(length=0)
    published.plain(axes)


def _kind(load: Load) -> str:
    return "chats" if load.texts else f"{load.prompt_tokens}/{load.output_tokens}"
