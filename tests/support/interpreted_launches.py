"""Run in a child process with TRITON_INTERPRET=1: what Triton's kernels beside attention compute here, as JSON.

python interpreted_launches.py cases                of each case the error in units of the last place, or the tokens
                                                    that the definition would not have drawn
python interpreted_launches.py engines CHECKPOINT.. tokens of whole engines, with these kernels and without; keys and
                                                    values are of 8 bits where the checkpoint has scales for them
python interpreted_launches.py tune CHECKPOINT      what `octavo tune` measures, each run once
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import drawn_cases
import interpreting
import launched_cases
from engine_harness import Harness
from octavo_engine.kernels.attention import Backend
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.triton import linear
from octavo_engine.kernels.triton.pointwise import Pointwise
from octavo_engine.kernels.triton.targets import H100
from octavo_engine.model import loading
from octavo_engine.model.compute.layers import SummingLayers
from octavo_engine.model.spec import read_spec
from octavo_engine.request import SamplingParams
from octavo_engine.runtime import device_draw
from octavo_engine.tune.cases import Bench


def engines(checkpoint: str) -> dict[str, list[list[int]]]:
    """Greedy and drawn tokens of some prompts, by an engine with every kernel in Triton, and by a processor's."""
    plain = answers(checkpoint, "reference" if read_spec(checkpoint).kv_scales else "torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "choose_linear", lambda *_: linear.kernels_on(H100))
        patch.setattr(loading, "choose_pointwise", lambda *_: Pointwise(H100).kernels)
        patch.setattr(device_draw, "serves", lambda _device: True)
        return {"plain": plain, "triton": answers(checkpoint, "triton")}


def answers(checkpoint: str, backend: Backend) -> list[list[int]]:
    decoder = loading.load_model(
        checkpoint, dtype=torch.float32, device=torch.device("cpu"), kernels=choose_attention(backend), loop="python"
    )
    assert isinstance(decoder.layers, SummingLayers) == (backend == "triton")
    cached = torch.float8_e4m3fn if decoder.spec.kv_scales else torch.float32
    harness = Harness(decoder, budget=12, blocks=32, cached=cached)
    prompts = torch.randint(3, decoder.spec.vocab, (3, 9), generator=torch.Generator().manual_seed(5)).tolist()
    params = [
        SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True),
        SamplingParams(temperature=0.9, top_p=0.9, seed=1, max_tokens=3, ignore_eos=True),
        SamplingParams(temperature=1.5, top_k=20, min_p=0.01, seed=2, max_tokens=3, ignore_eos=True),
    ]
    requests = [harness.submit(prompt, how) for prompt, how in zip(prompts, params, strict=True)]
    return [answered.tokens for answered in harness.finish(requests)]


def tune(checkpoint: str) -> dict[str, list[int]]:
    """Of each case, how often its work ran with the usual launch, and how many launches would be tried."""
    runs: list[int] = []

    def timer(call: Any) -> float:
        call()
        runs.append(1)
        return 1.0

    spec = read_spec(checkpoint)
    bench = Bench(
        spec, torch.bfloat16, torch.device("cpu"), H100, block_size=16, context=40, timer=timer, batches=(1, 2), chunk=9
    )
    found = {}
    for case in bench.cases():
        runs.clear()
        case.seconds(case.launches[0])
        found[f"{case.kernel} {case.size}"] = [len(runs), len(case.launches)]
    return found


def main(command: str, *arguments: str) -> Any:
    """What the command is for."""
    match command:
        case "cases":
            errors: dict[str, Any] = {str(case): case.units() for case in launched_cases.CASES}
            return errors | {str(case): case.wrong(torch.device("cpu")) for case in drawn_cases.CASES}
        case "engines":
            return [engines(checkpoint) for checkpoint in arguments]
        case "tune":
            return tune(str(Path(*arguments)))
    raise SystemExit(f"no command {command}")


if __name__ == "__main__":
    interpreting.correct()
    json.dump(main(*sys.argv[1:]), sys.stdout)
