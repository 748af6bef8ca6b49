"""A request's tokens, logits and logprobs are the same bits however it was scheduled: alone, among others, in chunks,
with prefix hits, after preemption."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_harness import GREEDY, Harness, NoMetrics, assert_same_bits
from octavo_engine.assembly import assemble
from octavo_engine.config import EngineConfig
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import library
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.loading import load_model
from octavo_engine.request import SamplingParams
from octavo_engine.tokenizer import load_tokenizer
from tiny_models import make_model, save_model

pytestmark = [pytest.mark.engine, pytest.mark.skipif(library.load() is None, reason="the CPU kernels do not run here")]
SEEDED = SamplingParams(temperature=1.3, top_p=0.95, seed=7, logprobs=4, max_tokens=12, ignore_eos=True)
KINDS = [(name, dtype) for name in ("llama", "mistral_window", "qwen3") for dtype in (torch.float32, torch.bfloat16)]


def load(path: Path, dtype: torch.dtype) -> Decoder:
    return load_model(str(path), dtype=dtype, device=torch.device("cpu"), kernels=choose_attention("cpu"))


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> list[Decoder]:
    paths = {name: save_model(make_model(name), tmp_path_factory.mktemp(name)) for name, _ in KINDS}
    return [load(paths[name], dtype) for name, dtype in KINDS]


def texts(source: random.Random, count: int, vocab: int, longest: int) -> list[list[int]]:
    """Prompts of any length, some of which begin as another does."""
    found: list[list[int]] = []
    for _ in range(count):
        length = source.randint(1, longest)
        head = source.choice(found)[: source.randint(0, length)] if found else []
        found.append(head + [source.randrange(3, vocab) for _ in range(length - len(head))])
    return found


@dataclass(frozen=True)
class Schedule:
    """How a test's requests are scheduled."""

    seed: int  # of prompts, parameters and arrivals
    budget: int
    blocks: int
    block_size: int
    caching: bool
    overlap: bool  # each step is launched before the tokens of the one before are looked at


schedules = st.builds(
    Schedule,
    seed=st.integers(0, 2**32),
    budget=st.sampled_from([1, 3, 17, 64, 2048]),
    blocks=st.sampled_from([28, 40, 300]),
    block_size=st.sampled_from([4, 16]),
    caching=st.booleans(),
    overlap=st.booleans(),
)


@settings(max_examples=40, deadline=None)
@given(schedules, st.integers(0, len(KINDS) - 1))
def test_any_schedule_gives_the_same_bits(decoders: list[Decoder], how: Schedule, kind: int) -> None:
    decoder, source = decoders[kind], random.Random(how.seed)
    prompts = texts(source, 7, decoder.spec.vocab, 90)
    params = [source.choice([GREEDY, SEEDED, replace(SEEDED, repetition_penalty=1.2)]) for _ in prompts]
    plain = Harness(decoder, caching=False)
    wanted = [plain.finish([plain.submit(*item)])[0] for item in zip(prompts, params, strict=True)]
    blocks = max(how.blocks, -(-(90 + 16) // how.block_size) + 1)  # the longest fits
    options = {"budget": how.budget, "block_size": how.block_size, "caching": how.caching, "overlap": how.overlap}
    harness = Harness(decoder, blocks=blocks, **options)
    requests = []
    for item in zip(prompts, params, strict=True):
        requests.append(harness.submit(*item))
        for _ in range(source.randint(0, 6)):
            harness.engine.step()
    assert_same_bits(harness.finish(requests), wanted)


def test_long_contexts_are_cut_into_the_same_pieces(tmp_path: Path) -> None:
    """Alone, a long context is shared out between threads; among others it is not; in chunks its pieces grow."""
    decoder = load(save_model(make_model("llama", max_position_embeddings=2048), tmp_path), torch.bfloat16)
    prompts = texts(random.Random(1), 9, decoder.spec.vocab, 20)
    prompts[4] = [random.Random(2).randrange(3, decoder.spec.vocab) for _ in range(1500)]
    wanted = Harness(decoder, caching=False).alone(prompts)
    for budget in (37, 500, 2048):
        assert_same_bits(Harness(decoder, budget=budget).together(prompts), wanted)


def test_preempted_requests_come_back_to_the_same_bits(decoders: list[Decoder]) -> None:
    decoder = decoders[1]
    prompts = texts(random.Random(3), 8, decoder.spec.vocab, 40)
    long = replace(GREEDY, max_tokens=60)
    wanted = Harness(decoder, caching=False).alone(prompts, long)
    found = Harness(decoder, blocks=16, caching=False).together(prompts, long)
    assert sum(answer.request.num_preemptions for answer in found) >= 2
    assert_same_bits(found, wanted)


def test_the_real_model(smollm2_gguf: Path) -> None:
    decoder = load(smollm2_gguf, torch.bfloat16)
    prompts = texts(random.Random(4), 10, decoder.spec.vocab, 120)
    wanted = Harness(decoder, caching=False).alone(prompts, SEEDED)
    for overlap in (False, True):
        assert_same_bits(Harness(decoder, budget=50, blocks=36, overlap=overlap).together(prompts, SEEDED), wanted)


def test_the_promise_is_refused_where_it_would_not_hold(smollm2_gguf: Path) -> None:
    config = EngineConfig(model=str(smollm2_gguf), device="cpu", batch_invariant=True, attention_backend="torch")
    with pytest.raises(InvalidConfiguration, match="--batch-invariant"):
        assemble(config, load_tokenizer(str(smollm2_gguf)), NoMetrics())
