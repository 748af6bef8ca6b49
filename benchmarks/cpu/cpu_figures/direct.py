"""transformers' `generate`, called directly: one static batch of the whole load. What HTTP costs, it does not pay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import measurement
from transformers_contender import Transformers, static_batch

from .results import Kept

STREAMS = (1, 8, 32)
TOKENS = 128


def measure(
    model: Path, threads: int, dtype: str, kept: Kept, say: Callable[[str], None]
) -> dict[int, measurement.Figures]:
    """Figures by streams, kept as the others are."""
    keys = {streams: _key(streams, threads, dtype) for streams in STREAMS}
    if any(kept.find(key) is None for key in keys.values()):
        say("transformers generate")
        prepare = partial(static_batch, dtype=dtype)
        with Transformers("transformers generate", prepare, model, threads) as contender:
            contender.run(measurement.Load(2, TOKENS, 8), seed=0)
            for streams, key in keys.items():
                kept.get_or(key, partial(_once, contender, streams))
    return {streams: measurement.Figures(**(kept.find(key) or {})) for streams, key in keys.items()}


def _key(streams: int, threads: int, dtype: str) -> dict[str, Any]:
    what = {"what": "direct", "version": version("transformers"), "dtype": dtype}
    return what | {"streams": streams, "threads": threads}


def _once(contender: Transformers, streams: int) -> dict[str, Any]:
    load = measurement.Load(streams, TOKENS, TOKENS)
    before = measurement.cpu_seconds(contender.pid)
    answers = contender.run(load, seed=1)
    return asdict(measurement.Figures.of(answers, load, measurement.cpu_seconds(contender.pid) - before))


def table(found: Mapping[int, measurement.Figures]) -> str:
    """One row for each number of streams."""
    lines = ["| streams | tokens/s | ms to first token | ms per token |", "|---:|---:|---:|---:|"]
    for streams, figures in found.items():
        first, each = figures.time_to_first_token * 1e3, figures.time_per_output_token * 1e3
        lines.append(f"| {streams} | {figures.tokens_per_second:.0f} | {first:.0f} | {each:.1f} |")
    return "\n".join(lines)
