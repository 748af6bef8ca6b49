"""Run in a child process with TRITON_INTERPRET=1: what Triton's attention computes here, as JSON.

With `all CHECKPOINT...` each case's distance from the plain definition ("units"), bytes that decodes moved beside those
that were expected ("traffic"), and greedy tokens of whole engines, by Triton and by torch ("tokens"); with `soak` the
units of many more cases.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import interpreting
from engine_harness import Harness
from octavo_engine.kernels.attention import AttentionShape, Backend
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.triton.common import padded_dim, table_name
from octavo_engine.kernels.triton.decode import Decodes
from octavo_engine.kernels.triton.targets import H100, launch_of
from octavo_engine.kernels.triton.traffic import DecodeShape, decode_traffic
from octavo_engine.model.loading import load_model
from octavo_engine.request import SamplingParams
from octavo_engine.runtime.graphs import GraphedSteps
from octavo_engine.runtime.runner import Steps
from replaying import Replaying, graphed
from triton_cases import BF16, E4M3, TritonCase, decode_cases, mixed_cases, soak_cases

PROMPT_LENGTHS = (1, 16, 17, 39)  # alone, a block, a block and one, over two of the engine's chunks
CHUNK = 24  # tokens of a step: prompts are cut, and share steps with decodes
ANSWER = 5  # tokens
SIZES = (3, 4)  # sequences of recorded decodes: the first ones to end leave two that are padded to three
RECORDED_FOR = 160  # tokens: several pieces, where these prompts have one or two

TRAFFIC_CASES = (
    TritonCase(((0, 1), (15, 1), (16, 1), (64, 1), (129, 1)), dtype=BF16),
    TritonCase(((899, 1), (500, 1), (3, 1)), heads=8, kv_heads=2, dtype=BF16),  # cut
    TritonCase(((899, 1), (40, 1)), heads=2, kv_heads=2, window=300, dtype=BF16, block_size=32),
    TritonCase(((1499, 1),), heads=4, kv_heads=1, head_dim=80, dtype=BF16, stored=E4M3),
    TritonCase(((299, 1), (40, 1), (0, 1)), heads=4, kv_heads=2, dtype=BF16, recorded=900),
    TritonCase(((40, 1), (0, 1)), heads=4, kv_heads=2, dtype=BF16, recorded=900),  # not cut, as recorded it may be
)


def units(cases: Sequence[TritonCase]) -> dict[str, float]:
    """By case."""
    return {str(case): case.units() for case in cases}


def traffic(case: TritonCase) -> dict[str, int]:
    """Bytes that one layer's decodes moved, and what the formula says of them."""
    query, keys, values, plain = case.tensors("reference")
    layout = case.as_launched(plain)
    shape = AttentionShape(case.block_size, case.kv_heads, case.head_dim, case.dtype, 0.1, case.window)
    output = torch.empty(query.shape, dtype=query.dtype)
    decodes = Decodes.of(layout, shape, H100)
    with interpreting.counting() as moved:
        decodes.attend(query, keys, values, output)
    tile = launch_of(table_name("decode", query, keys), H100.capability, padded_dim(case.head_dim)).blocks["TILE"]
    cut = decodes.cut(case.heads // case.kv_heads, keys.itemsize, tile)
    pieces = cut.pieces(min(plain.max_context, decodes.window))
    recorded = cut.most(min(layout.max_context, decodes.window)) if case.recorded else 1
    lengths = [start + 1 for start, _ in case.work]
    sizes = (case.heads, case.kv_heads, case.head_dim, case.block_size, query.itemsize, keys.itemsize, case.window)
    expected = decode_traffic(DecodeShape(*sizes), lengths, pieces, tile, recorded)
    return {"counted": moved.bytes, "expected": expected.moved, "needed": expected.needed, "pieces": pieces.count}


def tokens(checkpoint: Path) -> dict[str, Sequence[Sequence[int]]]:
    """Greedy tokens of some prompts, all at once, by backend; and with decodes that are padded and replayed."""
    recorder = Replaying()
    found = {
        "triton": _answers(checkpoint, "triton"),
        "torch": _answers(checkpoint, "torch"),
        "replayed": _answers(checkpoint, "triton", recorder),
    }
    assert set(recorder.replays) == set(SIZES), "each size has come"
    return found


def _answers(checkpoint: Path, backend: Backend, recorder: Replaying | None = None) -> list[list[int]]:
    decoder = load_model(
        str(checkpoint),
        dtype=torch.float32,
        device=torch.device("cpu"),
        kernels=choose_attention(backend),
        loop="python",
    )

    def wrap(steps: Steps) -> Steps | GraphedSteps:
        if recorder is None:
            return steps
        made = graphed(steps, SIZES, recorder, max_context=RECORDED_FOR)
        for size in reversed(SIZES):
            made.record(size)
        return made

    harness = Harness(decoder, budget=CHUNK, blocks=64, spare_blocks=1, wrap=wrap)
    source = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, decoder.spec.vocab, (length,), generator=source).tolist() for length in PROMPT_LENGTHS]
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
    return [answered.tokens for answered in harness.together(prompts, params)]


def main(command: str, *arguments: str) -> Any:
    """What the command is for."""
    interpreting.correct()
    torch.use_deterministic_algorithms(True)  # memory that is not written is NaN
    torch.set_num_threads(1)
    if command == "soak":
        return units(soak_cases())
    return {
        "units": units([*decode_cases(), *mixed_cases()]),
        "traffic": {str(case): traffic(case) for case in TRAFFIC_CASES},
        "tokens": {name: tokens(Path(name)) for name in arguments},
    }


if __name__ == "__main__":
    json.dump(main(*sys.argv[1:]), sys.stdout)
