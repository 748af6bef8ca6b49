"""Figures as a table for people and as JSON for machines. Ratios are of medians; more than 1 favours Octavo."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measurement import Figures, Load

Results = Mapping[str, Mapping[Load, list[Figures]]]  # contender -> load -> runs


def ratios(octavo: Figures, other: Figures) -> dict[str, float]:
    """How many times better Octavo is."""
    return {
        "tokens_per_second": octavo.tokens_per_second / other.tokens_per_second,
        "time_per_output_token": other.time_per_output_token / octavo.time_per_output_token,
        "time_to_first_token": other.time_to_first_token / octavo.time_to_first_token,
        "cpu_seconds_per_kilotoken": other.cpu_seconds_per_kilotoken / octavo.cpu_seconds_per_kilotoken,
    }


def table(results: Results) -> str:
    """One row for each load and contender, in Markdown."""
    lines = [
        "| streams | contender | tok/s | ms per token | ms to first token | CPU s per 1,000 | Octavo's lead in each |",
        "|---:|---|---:|---:|---:|---:|---|",
    ]
    for load in next(iter(results.values())):
        octavo = Figures.median(results["octavo"][load])
        for name, runs in results.items():
            middle = Figures.median(runs[load])
            lead = ", ".join(f"{value:.2f}x" for value in ratios(octavo, middle).values()) if name != "octavo" else ""
            figures = (
                f"{middle.tokens_per_second:.0f}",
                f"{middle.time_per_output_token * 1e3:.1f}",
                f"{middle.time_to_first_token * 1e3:.0f}",
                f"{middle.cpu_seconds_per_kilotoken:.2f}",
            )
            lines.append(f"| {' | '.join((str(load.streams), name, *figures, lead))} |")
    return "\n".join(lines)


def document(results: Results, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was measured, run by run."""
    runs = [
        {
            "contender": name,
            **asdict(load),
            "runs": [asdict(run) for run in figures],
            "median": asdict(Figures.median(figures)),
        }
        for name, loads in results.items()
        for load, figures in loads.items()
    ]
    return {"machine": dict(machine), "results": runs, "octavo_ahead": _ahead(results)}


def _ahead(results: Results) -> list[dict[str, Any]]:
    return [
        {
            "contender": name,
            "streams": load.streams,
            **ratios(Figures.median(results["octavo"][load]), Figures.median(runs)),
        }
        for name, loads in results.items()
        if name != "octavo"
        for load, runs in loads.items()
    ]


def machine(threads: int) -> dict[str, Any]:
    """What the figures depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    flags = next((line.split(":")[1].split() for line in lines if line.startswith("flags")), [])
    return {
        "cpu": cpu,
        "instructions": [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags],
        "cores": len(os.sched_getaffinity(0)),
        "threads": threads,
        "load_average_before": round(os.getloadavg()[0], 1),
        **{name: version(name) for name in ("torch", "transformers", "octavo")},
    }
