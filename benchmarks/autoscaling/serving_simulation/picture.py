"""The comparison as one picture: the replicas that each policy wanted, over each load; and what that cost and gave."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .comparison import Result
from .service import Record

INK = {
    "Octavo": ("#0f766e", 2.0, "-"),
    "HPA, queue depth": ("#c2410c", 1.1, "-"),
    "KEDA, total queue": ("#d9a441", 1.1, (0, (3, 2))),
    "Knative, concurrency": ("#6d5bd0", 1.1, "-"),
}
COLUMNS = 3
BIN_SECONDS = 30.0


def draw(results: Sequence[Result], path: Path) -> None:
    """Writes the picture as SVG; equal results give equal bytes."""
    mpl.rcParams.update({"svg.hashsalt": "octavo", "svg.fonttype": "none", "font.size": 8, "font.family": "sans-serif"})
    names = list(dict.fromkeys(result.scenario.name for result in results))
    rows = -(-(len(names) + 1) // COLUMNS)
    figure = Figure(figsize=(11, 2.25 * rows), layout="constrained")
    cells = figure.subplots(rows, COLUMNS).flatten()
    for axes, name in zip(cells, names, strict=False):
        _panel(axes, [result for result in results if result.scenario.name == name])
    _costs(cells[len(names)], results)
    for axes in cells[len(names) + 1 :]:
        axes.set_visible(False)
    handles, labels = cells[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": "make bench-autoscaling"})
    path.write_text(_compact(path.read_text(encoding="utf-8")), encoding="utf-8")


def _compact(svg: str) -> str:
    """The same picture with coordinates to a tenth of a point and without blanks at the ends of lines."""
    rounded = re.sub(r"(?<![\d.-])-?\d+\.\d{2,}", lambda found: f"{float(found[0]):.1f}", svg)
    return "\n".join(line.strip() for line in rounded.splitlines()) + "\n"


def _panel(axes: Axes, results: Sequence[Result]) -> None:
    """Wanted replicas over time, before the requests that came (grey, in requests per second, on the right)."""
    record = results[0].record
    load = axes.twinx()
    times, rates = _offered(record)
    load.fill_between(times, rates, step="post", color="#94a3b8", alpha=0.3, linewidth=0, label="requests/s")
    load.set_ylim(0, max(rates) * 1.6)
    load.tick_params(labelsize=6, colors="#94a3b8", length=0)
    load.spines[:].set_visible(False)
    axes.set_zorder(load.get_zorder() + 1)
    axes.patch.set_visible(False)
    for result in results:
        color, width, style = INK[result.policy]
        steps = [(0.0, result.start), *result.record.wanted, (record.horizon, 0)]
        counts = [count for _, count in steps[:-1]]
        axes.step([when / 60 for when, _ in steps], [*counts, counts[-1]], where="post", color=color, linewidth=width,
                  linestyle=style, label=result.policy)  # fmt: skip
    axes.set_title(
        f"{results[0].scenario.name} (needs {results[0].needed:.0f})", loc="left", fontsize=8.5, weight="bold"
    )
    axes.set_ylim(0, 13)
    axes.set_xlim(0, record.horizon / 60)
    axes.set_yticks((0, 4, 8, 12))
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("minutes", fontsize=7)
    axes.set_ylabel("replicas", fontsize=7)


def _offered(record: Record) -> tuple[list[float], list[float]]:
    """Arrivals per second, by bins, over minutes."""
    counts = [0] * (int(record.horizon / BIN_SECONDS) + 1)
    for request in record.requests:
        counts[int(request.arrival / BIN_SECONDS)] += 1
    return [index * BIN_SECONDS / 60 for index in range(len(counts))], [count / BIN_SECONDS for count in counts]


def _costs(axes: Axes, results: Sequence[Result]) -> None:
    """Each run as a point: replica hours beyond what the load needs all the time, against late requests."""
    for result in results:
        color, width, _ = INK[result.policy]
        hours = result.needed * result.record.horizon / 3600
        late = max(0.02, 100 * result.score.late_share)
        axes.plot(result.score.replica_hours / hours, late, "o", color=color, markersize=3 + width, alpha=0.85)
    axes.set_yscale("log")
    axes.set_title("all loads: cost and lateness", loc="left", fontsize=8.5, weight="bold")
    axes.set_xlabel("replica hours, as a share of the needed count all the time", fontsize=7)
    axes.set_ylabel("late requests, %", fontsize=7)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25, linewidth=0.5)
    axes.spines[["top", "right"]].set_visible(False)
