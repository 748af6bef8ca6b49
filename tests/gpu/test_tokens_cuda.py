"""A whole engine on a real CUDA device gives transformers' greedy tokens, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_harness import Harness
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
