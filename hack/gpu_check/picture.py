"""The report as one picture: tokens a second over the batch, and the shares of the device's limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpu_check.results import EAGER, OCTAVO, TRANSFORMERS, Report, Timing, shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = {OCTAVO: "#0f766e", EAGER: "#5eead4", TRANSFORMERS: "#c2410c"}
INK, GREY = "#0f172a", "#94a3b8"
LIMITS = {"bandwidth": "memory, decoding", "flops": "FLOP/s, decoding", "prefill_flops": "FLOP/s, prompts"}


def draw(report: Report, path: Path) -> None:
    """Write it in the format that the name ends with."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": "octavo", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(10, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        _throughput(left, report)
        _shares(right, report)
        figure.suptitle(report.machine.name, x=0.01, ha="left", fontsize=9, weight="bold", color=INK)
        metadata = {"Date": None, "Creator": "gpu-check"} if path.suffix == ".svg" else {"Software": "gpu-check"}
        figure.savefig(path, dpi=150, metadata=metadata)


def _contenders(report: Report) -> dict[str, list[Timing]]:
    """The timings of each that has some."""
    found = {name: [report.timing(name, load) for load in report.loads] for name in COLORS}
    kept = {name: [timing for timing in timings if timing is not None] for name, timings in found.items()}
    return {name: timings for name, timings in kept.items() if timings}


def _throughput(axes: Axes, report: Report) -> None:
    batches = [load.batch for load in report.loads]
    axes.loglog(batches, [report.best(load) for load in report.loads], color=GREY, ls="--", label="at best")
    for contender, timings in _contenders(report).items():
        rates = [timing.tokens_per_second for timing in timings]
        places, color = [timing.load.batch for timing in timings], COLORS[contender]
        axes.loglog(places, rates, "o-", color=color, label=contender, markersize=4)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.minorticks_off()
    axes.set_title("tokens/s, decoding", loc="left", fontsize=8.5, weight="bold")
    axes.set_xlabel("sequences at once")
    axes.legend(frameon=False)
    _plain(axes)


def _shares(axes: Axes, report: Report) -> None:
    """A group of bars for each batch: for each limit, each contender's beside the others'."""
    contenders = _contenders(report)
    bars = [(limit, contender) for limit in LIMITS for contender in contenders]
    width = 0.8 / len(bars)
    for place, (limit, contender) in enumerate(bars):
        timings = contenders[contender]
        at = [report.loads.index(timing.load) - 0.4 + (place + 0.5) * width for timing in timings]
        heights = [getattr(shares(timing, report.cost, report.machine), limit) for timing in timings]
        opacity = 1.0 - 0.3 * list(LIMITS).index(limit)
        label = f"{LIMITS[limit]} ({contender})"
        axes.bar(at, heights, width * 0.9, color=COLORS[contender], alpha=opacity, label=label)
    axes.set_xticks(range(len(report.loads)), [str(load.batch) for load in report.loads])
    axes.set_ylim(0, 1)
    axes.set_title("share of the device's limit", loc="left", fontsize=8.5, weight="bold")
    axes.set_xlabel("sequences at once")
    axes.legend(frameon=False, fontsize=6.5)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
