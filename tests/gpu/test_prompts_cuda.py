"""What is read of prompts on a real CUDA device is what transformers says, while steps overlap and when they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine_harness import GREEDY, Harness
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.model.loading import load_model
from octavo_engine.prompt_reading import HiddenSum, PromptLogprobs
from octavo_engine.request import Pooling, SamplingParams
from tiny_models import make_model, oracle_logits, save_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none"),
]
LENGTHS = (2, 16, 40, 90)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("budget", [2048, 24])
def test_log_probabilities_and_hidden_states(tmp_path: Path, budget: int, overlap: bool) -> None:
    model = make_model("llama")
    place = save_model(model, tmp_path)
    decoder = load_model(
        str(place), dtype=torch.float32, device=torch.device("cuda"), kernels=choose_attention("triton")
    )
    source = torch.Generator().manual_seed(3)
    prompts = [torch.randint(3, decoder.spec.vocab, (length,), generator=source) for length in LENGTHS]
    harness = Harness(decoder, budget=budget, overlap=overlap)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, prompt_logprobs=3)
    scored = [harness.submit(prompt.tolist(), params) for prompt in prompts]
    pooled = [harness.submit(prompt.tolist(), SamplingParams(max_tokens=0), pooling=Pooling.MEAN) for prompt in prompts]
    answers = harness.finish(scored)
    for prompt, one, other in zip(prompts, scored, pooled, strict=True):
        assert isinstance(one.reading, PromptLogprobs)
        assert isinstance(other.reading, HiddenSum)
        wanted = oracle_logits(model, prompt).log_softmax(-1)[:-1].gather(1, prompt[1:, None])[:, 0]
        assert (torch.tensor(one.reading.logprobs) - wanted).abs().max() < 1e-3
        with torch.no_grad():
            state = model.model(prompt[None]).last_hidden_state[0].mean(0)
        assert (torch.tensor(other.reading.direction()) - state / state.norm()).abs().max() < 1e-4
    alone = Harness(decoder, caching=False).together([prompt.tolist() for prompt in prompts], GREEDY)
    assert [answer.tokens for answer in answers] == [answer.tokens[:4] for answer in alone]
