"""A plan as one picture: the roofline with this model's phases on it, and tokens a second over the batch.

The only user of matplotlib, which is an extra: a server does without.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.plan.estimate import Plan, curve
from octavo_engine.plan.text import describe
from octavo_engine.roofline import Rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, DECODE, PREFILL, GREY = "#0f172a", "#0f766e", "#c2410c", "#94a3b8"
SHADES = ("#0f766e", "#6d5bd0", "#c2410c")
POINTS = 5  # batches that are marked on the roofline


def check_available() -> None:
    """Raise InvalidConfiguration, with the way to get it, where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InvalidConfiguration("--picture needs matplotlib: pip install 'octavo[plan]'")


def draw(plan: Plan, path: Path) -> None:
    """Write the picture in the format that the name ends with; equal plans give equal bytes."""
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"svg.hashsalt": "octavo", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(10, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        _roofline(left, plan)
        _throughput(right, plan)
        metadata = {"Date": None, "Creator": "octavo plan"} if path.suffix == ".svg" else {"Software": "octavo plan"}
        try:
            figure.savefig(path, dpi=150, metadata=metadata)
        except OSError as error:
            raise InvalidConfiguration(f"--picture: {path} cannot be written: {error.strerror}") from error


def _roofline(axes: Axes, plan: Plan) -> None:
    """Operations a second over operations a byte: the roof, and where the phases lie under it."""
    machine = plan.target.machine
    shown = plan.batches[:: -(-len(plan.batches) // POINTS) or 1]
    decodes = [(f"decode ×{batch}", plan.decode(batch)) for batch in shown or (1,)]
    prefills = [(f"prefill {length:,}", plan.prefill(length)) for length in plan.lengths[:2]]
    intensities = [rate.work.intensity for _, rate in (*decodes, *prefills)]
    low, high = min(*intensities, machine.ridge) / 3, max(*intensities, machine.ridge) * 3
    axes.loglog([low, machine.ridge, high], [low * machine.bandwidth, machine.flops, machine.flops], color=INK, lw=1.5)
    axes.axvline(machine.ridge, color=GREY, lw=0.8, ls=(0, (3, 3)))
    _points(axes, decodes, DECODE, below=True)
    _points(axes, prefills, PREFILL, below=False)
    axes.set_title(describe(machine), loc="left", fontsize=8.5, weight="bold")
    axes.set_xlabel(f"FLOP a byte (it turns at {machine.ridge:,.0f})")
    axes.set_ylabel("FLOP/s at best")
    _plain(axes)


def _points(axes: Axes, rates: list[tuple[str, Rate]], color: str, *, below: bool) -> None:
    for label, rate in rates:
        at = rate.work.intensity, rate.work.flops / rate.seconds
        axes.plot(*at, "o", color=color, markersize=4)
        offset, alignment = ((4, -9), "left") if below else ((-4, 6), "right")
        axes.annotate(label, at, offset, textcoords="offset points", fontsize=6.5, color=color, ha=alignment)


def _throughput(axes: Axes, plan: Plan) -> None:
    """Tokens a second over the batch, for three contexts, up to as many sequences as fit."""
    if plan.cache is not None:
        lengths = sorted({min(plan.lengths), plan.context, max(plan.lengths)})
        for length, color in zip(lengths, SHADES, strict=False):
            rates = list(curve(plan, length))
            axes.loglog([rate.tokens for rate in rates], [rate.tokens_per_second for rate in rates], color=color,
                        lw=1.5, label=f"{length:,} tokens of context")  # fmt: skip
            axes.plot(rates[-1].tokens, rates[-1].tokens_per_second, "o", color=color, markersize=4)
        axes.legend(frameon=False, fontsize=7)
    axes.set_title("decode: tokens/s at best, up to what fits", loc="left", fontsize=8.5, weight="bold")
    axes.set_xlabel("sequences at once")
    axes.set_ylabel("tokens/s")
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7)
