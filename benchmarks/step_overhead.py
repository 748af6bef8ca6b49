"""What a step costs around the model: microseconds per running request, by number of requests and length of context.

    python benchmarks/step_overhead.py [--quick] [--profile] [--json FILE]

Every request decodes; the model computes nothing. Times are processor time of the stepping thread, the least of several
windows: on a busy machine that is what repeats. A window is as many steps as a block has tokens, so that each request
takes exactly one new block in it.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import pstats
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import report
from null_engine import MAX_STREAMS, NullParts, null_engine

from octavo_engine.request import Request, SamplingParams

BLOCK = 16
LOADS = tuple((streams, context) for context in (128, 2_048) for streams in (1, 64, 256, MAX_STREAMS))
OUTPUT = 1_024
PARTS = ("schedule", "publish", "inputs", "sample", "rest")
STEP_OVERHEAD_LIMIT = 1.25  # a request among 1,024 may cost this many times what it costs among 64, at most


@dataclass(frozen=True)
class Row:
    """Microseconds of one step for each running request, in all and by part."""

    streams: int
    context: int  # tokens of each prompt
    step: float
    parts: dict[str, float]


class Clocks:
    """Processor time spent inside of named callables."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def around(self, owner: object, method: str, name: str) -> None:
        """Time `owner.method` from now on."""
        inner: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any) -> Any:
            began = time.thread_time()
            result = inner(*args)
            self.seconds[name] += time.thread_time() - began
            return result

        setattr(owner, method, timed)


def clocks_in(parts: NullParts) -> Clocks:
    """Clocks around the parts of a step; what is in none of them is tokens, text and metrics."""
    clocks = Clocks()
    clocks.around(parts.scheduler, "schedule", "schedule")
    clocks.around(parts.scheduler, "computed", "schedule")
    clocks.around(parts.scheduler, "stats", "publish")
    clocks.around(parts.runner, "launch", "launch")
    clocks.around(parts.sampler, "sample", "sample")
    return clocks


def prepared(streams: int, context: int) -> NullParts:
    """An engine in which `streams` requests have computed their prompts and decode."""
    blocks = streams * (context + OUTPUT) // BLOCK + 2 * streams
    parts = null_engine(max_model_len=context + OUTPUT + BLOCK, blocks=blocks)
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT, ignore_eos=True)
    for number in range(streams):
        prompt = [1_000 + number, *range(2_000, 2_000 + context - 1)]
        parts.engine.add(Request(id=f"r{number}", tokens=prompt, params=params, arrival=time.monotonic()))
    while sum(output.delta.text != "" for output in parts.engine.step()) < streams:
        pass
    gc.collect()
    gc.freeze()  # as the server does once it is ready
    return parts


def measure(streams: int, context: int, windows: int) -> Row:
    """One row of the table."""
    parts = prepared(streams, context)
    clocks, rows = clocks_in(parts), []
    for _ in range(windows):
        clocks.seconds.clear()
        began = time.thread_time()
        for _ in range(BLOCK):
            parts.engine.step()
        rows.append(row(streams, context, time.thread_time() - began, clocks.seconds))
    return min(rows, key=lambda each: each.step)


def row(streams: int, context: int, seconds: float, clocks: dict[str, float]) -> Row:
    """Seconds of a window as microseconds per request and step."""
    spent = dict(clocks)
    spent["inputs"] = spent.pop("launch") - spent["sample"]
    spent["rest"] = seconds - sum(spent.values())
    scale = 1e6 / (BLOCK * streams)
    return Row(streams, context, seconds * scale, {part: spent[part] * scale for part in PARTS})


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [f"| context | requests | us per request | {' | '.join(PARTS)} |", "|---:|---:|---:" + "|---:" * 5 + "|"]
    for each in rows:
        parts = " | ".join(f"{each.parts[part]:.2f}" for part in PARTS)
        lines.append(f"| {each.context:,} | {each.streams:,} | {each.step:.2f} | {parts} |")
    return "\n".join(lines)


def grows(rows: list[Row]) -> list[str]:
    """Where a request costs more among many than among 64."""
    cost = {(each.context, each.streams): each.step for each in rows}
    return [
        f"at {context} tokens of context a request costs {value / cost[context, 64]:.2f} times as much among {streams}"
        for (context, streams), value in cost.items()
        if streams > 64 and value > STEP_OVERHEAD_LIMIT * cost[context, 64]
    ]


def profile(streams: int, context: int) -> None:
    """Where the time goes, function by function."""
    parts = prepared(streams, context)
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(4 * BLOCK):
        parts.engine.step()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def main() -> int:
    """Measure, print the table, write JSON if asked; 1 when a request costs more among many."""
    parser = argparse.ArgumentParser(description="What a step costs around the model.")
    parser.add_argument("--quick", action="store_true", help="two windows of each load: does it run?")
    parser.add_argument("--profile", action="store_true", help="show where the time of 256 requests goes, and stop")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    options = parser.parse_args()
    if options.profile:
        profile(256, 128)
        return 0
    rows = [measure(streams, context, 2 if options.quick else 12) for streams, context in LOADS]
    print(table(rows))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"machine": report.machine(1), "rows": [asdict(each) for each in rows]}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    complaints = grows(rows)
    print(*complaints, sep="\n")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
