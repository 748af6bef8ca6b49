"""What benchmarks ask of each contender: the same, and nothing that any of them has seen before."""

from __future__ import annotations

import runpy
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Load = runpy.run_path(str(BENCHMARKS / "measurement.py"))["Load"]  # its neighbours are scripts, not modules

BLOCK = 16  # tokens: what begins alike for so many is found in a cache
LOADS = [Load(1, 128, 128), Load(8, 128, 128), Load(32, 128, 128), Load(8, 128, 32), Load(8, 64, 128)]


def test_no_two_prompts_begin_alike_whatever_their_loads_and_rounds() -> None:
    prompts = [prompt for load in LOADS for seed in range(3) for prompt in load.prompts(seed)]
    assert len({tuple(prompt[:BLOCK]) for prompt in prompts}) == len(prompts)


def test_a_round_asks_everybody_the_same() -> None:
    for load in LOADS:
        assert load.prompts(1) == load.prompts(1)
        assert [len(prompt) for prompt in load.prompts(1)] == [load.prompt_tokens] * load.streams
