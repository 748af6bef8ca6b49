"""Octavo beside transformers on this machine: the same model, the same load, in turns.

    python benchmarks/side_by_side.py [--quick] [--json FILE]

The contenders take turns within each round, so that whatever else the machine does meets all of them. What counts is a
median over rounds. The exit code is 1 when Octavo is not ahead in tokens per second somewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import report
from checkpoint import smollm2
from measurement import Answer, Figures, Load, cpu_seconds
from octavo_contender import Octavo
from transformers_contender import Transformers, continuous_batch, static_batch

TOKENS = 128
FULL = [Load(streams, TOKENS, TOKENS) for streams in (1, 8, 32)]
QUICK = [Load(streams, TOKENS, TOKENS // 4) for streams in (1, 8)]
WARM_UP = Load(2, TOKENS, 8)


class Contender(Protocol):
    """Answers a load."""

    name: str

    @property
    def pid(self) -> int:
        """The process that does the work."""

    def run(self, load: Load, seed: int) -> list[Answer]:
        """All requests at once."""


def compare(
    contenders: Sequence[Contender], loads: Sequence[Load], rounds: int
) -> dict[str, dict[Load, list[Figures]]]:
    """Run every contender on every load, `rounds` times, in turns."""
    results: dict[str, dict[Load, list[Figures]]] = {each.name: {load: [] for load in loads} for each in contenders}
    for contender in contenders:
        contender.run(WARM_UP, seed=0)
    for number in range(1, rounds + 1):
        for load in loads:
            for contender in contenders:
                figures = measure(contender, load, seed=number)
                results[contender.name][load].append(figures)
                say(f"round {number}, {load.streams} streams, {contender.name}: {figures.tokens_per_second:.0f} tok/s")
    return results


def measure(contender: Contender, load: Load, seed: int) -> Figures:
    """One run."""
    before = cpu_seconds(contender.pid)
    answers = contender.run(load, seed)
    return Figures.of(answers, load, cpu_seconds(contender.pid) - before)


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Compare, print the table, write JSON if asked."""
    parser = argparse.ArgumentParser(description="Octavo beside transformers on this machine.")
    parser.add_argument("--quick", action="store_true", help="one round, 1 and 8 streams, short answers: is it alive?")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load is run (default: 3)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all processors")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run to FILE")
    options = parser.parse_args()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the contenders end with us
    model, machine = smollm2(), report.machine(options.threads)
    if machine["load_average_before"] > machine["cores"] / 2:
        say(f"the machine is busy (load average {machine['load_average_before']}): figures will be low and uneven")
    loads, rounds = (QUICK, 1) if options.quick else (FULL, options.rounds)
    with ExitStack() as stack:
        contenders: list[Contender] = [
            stack.enter_context(Octavo(model, options.threads)),
            stack.enter_context(Transformers("transformers generate", static_batch, model, options.threads)),
            stack.enter_context(Transformers("transformers generate_batch", continuous_batch, model, options.threads)),
        ]
        results = compare(contenders, loads, rounds)
    print(report.table(results))
    document = report.document(results, machine)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0 if all(row["tokens_per_second"] > 1 for row in document["octavo_ahead"]) else 1


if __name__ == "__main__":
    sys.exit(main())
