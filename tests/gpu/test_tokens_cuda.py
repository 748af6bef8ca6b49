"""A whole engine on a real CUDA device gives transformers' greedy tokens, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_harness import Harness
from octavo_engine.batch import Batch
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.model.loading import load_model
from octavo_engine.request import SamplingParams
from tiny_models import VARIANTS, make_model, save_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none"),
]
LENGTHS, ANSWER = (1, 16, 40, 65), 24


def prompts(vocab: int) -> list[list[int]]:
    source = torch.Generator().manual_seed(3)
    return [torch.randint(3, vocab, (length,), generator=source).tolist() for length in LENGTHS]


def wanted(model: Any, prompt: list[int]) -> list[int]:
    tokens = torch.tensor([prompt], device=model.device)
    found = model.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=ANSWER, min_new_tokens=ANSWER, do_sample=False
    )
    return found[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("budget", [2048, 24])
@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_tokens_are_those_of_transformers(variant: str, budget: int, tmp_path: Path) -> None:
    model = make_model(variant)
    model.generation_config.eos_token_id = None
    place = save_model(model, tmp_path)
    decoder = load_model(
        str(place), dtype=torch.float32, device=torch.device("cuda"), kernels=choose_attention("triton")
    )
    harness = Harness(decoder, budget=budget)
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
    asked = prompts(decoder.spec.vocab)
    found = [answer.tokens for answer in harness.together(asked, params)]
    assert found == [wanted(model.to("cuda"), prompt) for prompt in asked]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # it is no more than a prototype, says torch
def test_a_launched_step_never_waits_for_the_device(tmp_path: Path) -> None:
    """Whatever requests ask for: tokens come back later, and nothing else does."""
    decoder = load_model(
        str(save_model(make_model("qwen3"), tmp_path)),
        dtype=torch.float32,
        device=torch.device("cuda"),
        kernels=choose_attention("triton"),
    )
    harness = Harness(decoder, overlap=True)
    params = (
        SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True),
        SamplingParams(temperature=0.9, top_p=0.9, top_k=20, min_p=0.01, seed=1, max_tokens=ANSWER, ignore_eos=True),
        SamplingParams(temperature=0.0, logprobs=3, presence_penalty=0.5, repetition_penalty=1.1, max_tokens=ANSWER),
    )
    asked = prompts(decoder.spec.vocab)
    harness.finish([harness.submit(prompt, how) for prompt in asked for how in params])  # kernels are compiled
    launch = harness.runner.launch

    def watched(batch: Batch) -> Any:
        torch.cuda.set_sync_debug_mode("error")
        try:
            return launch(batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    harness.runner.launch = watched  # type: ignore[method-assign]
    answers = harness.finish([harness.submit(prompt, how) for prompt in asked for how in params])
    assert all(answer.tokens for answer in answers)
