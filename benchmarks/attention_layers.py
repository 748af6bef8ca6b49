"""Attention of decodes in all layers of SmolLM2-135M, over a cache that lies anywhere, and its share of memory's speed.

    .venv/bin/python benchmarks/attention_layers.py [--sequences 1 8 32] [--context 256]

Each layer has keys and values of its own, so that none is in a processor's own memory when it is read, as in a step.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable

import torch

from octavo_engine.kernels.attention import StepLayout
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import rates

LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 30, 9, 3, 64, 16


def decodes(sequences: int, context: int) -> StepLayout:
    """One token each, whose blocks lie in no order."""
    blocks = -(-context // BLOCK_SIZE)
    order = list(range(sequences * blocks))
    random.Random(0).shuffle(order)
    tables = torch.tensor(order, dtype=torch.int32).view(sequences, blocks)
    last = torch.full((sequences,), context - 1)
    slots = tables[:, -1].long() * BLOCK_SIZE + last % BLOCK_SIZE
    starts = torch.arange(sequences + 1, dtype=torch.int32)
    return StepLayout(last, slots, starts, last.int() + 1, tables, 1, context, sequences)


def all_layers(sequences: int, context: int, dtype: torch.dtype) -> tuple[Callable[[], None], int]:
    """What a step's attention does, and the bytes of keys and values that it reads."""
    layout, kernels = decodes(sequences, context), choose_attention("cpu")
    shape = (LAYERS, 2, layout.block_tables.numel(), BLOCK_SIZE, KV_HEADS, HEAD_DIM)
    caches = torch.full(shape, 0.5, dtype=dtype)  # written, so that it is there
    query = torch.randn(sequences, HEADS, HEAD_DIM).to(dtype)

    def run() -> None:
        for keys, values in caches:
            kernels.attend(query, keys, values, layout, scale=HEAD_DIM**-0.5)

    return run, caches.nbytes


def fastest(run: Callable[[], None], times: int = 16) -> float:
    """Seconds of the fastest run: others only slow it down."""
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--context", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    memory = rates.read_rate(options.threads)
    print(f"memory is read at {memory / 1e9:.0f} GB/s\n")
    print("| sequences | context | ms | of memory's speed |\n|---|---|---|---|")
    for context in options.context:
        for sequences in options.sequences:
            run, size = all_layers(sequences, context, torch.bfloat16)
            seconds = fastest(run)
            print(f"| {sequences} | {context:,} | {seconds * 1e3:.2f} | {size / seconds / memory:.2f} |")


if __name__ == "__main__":
    main()
