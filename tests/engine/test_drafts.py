"""Whatever is guessed of an answer, its tokens, logits and logprobs are the same bits as without a guess."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_harness import GREEDY, Harness, NoMetrics, assert_same_bits
from octavo_engine.assembly import assemble
from octavo_engine.config import EngineConfig
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import library
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.loading import load_model
from octavo_engine.request import FinishReason, Request, SamplingParams
from octavo_engine.runtime.sampler import Sampler
from octavo_engine.scheduling.drafts import Drafter
from octavo_engine.structured import Forms, spec
from octavo_engine.tokenizer import load_tokenizer
from scheduling_helpers import FreeOfCharge
from small_vocabulary import END, OTHER_END, VOCABULARY
from tiny_models import make_model, save_model

pytestmark = [pytest.mark.engine, pytest.mark.skipif(library.load() is None, reason="the CPU kernels do not run here")]

SEEDED = SamplingParams(temperature=1.3, top_p=0.95, seed=7, logprobs=4, max_tokens=40, ignore_eos=True)
LONG = replace(GREEDY, max_tokens=40)
PENALISED = replace(SEEDED, repetition_penalty=1.2)
# Neither comes to an end within an answer.
FORMS = [
    Forms(VOCABULARY, [END, OTHER_END]).compile(form)
    for form in (
        spec.json_schema({"type": "array", "minItems": 99, "items": {"enum": ["the fox", "yes", 10]}}, "p"),
        spec.regex("([a-c]{1,3}-(yes|no) ){99}", "p"),
    )
]


class Prophet(Drafter):
    """Guesses what is going to be said, which it is told, but for every so many tokens."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]], wrong: float, source: random.Random) -> None:
        super().__init__(9, 1_000_000)
        self._answers, self._wrong, self._source = answers, wrong, source

    def draft(self, requests: Sequence[Request], price: float, rows: int) -> list[tuple[int, ...]]:
        return [self._draft(request, rows // len(requests)) for request in requests]

    def _draft(self, request: Request, rows: int) -> tuple[int, ...]:
        answer = self._answers[tuple(request.tokens[: request.num_prompt])]
        known = answer[request.num_output : len(answer) - 1]
        count = self._source.randint(0, min(9, rows, len(known)))
        return tuple(1 if self._source.random() < self._wrong else token for token in known[:count])


def load(path: Path, dtype: torch.dtype) -> Decoder:
    return load_model(str(path), dtype=dtype, device=torch.device("cpu"), kernels=choose_attention("cpu"))


KINDS = [
    ("llama", torch.bfloat16),
    ("llama", torch.float32),
    ("mistral_window", torch.bfloat16),
    ("qwen3", torch.bfloat16),
]


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> list[Decoder]:
    return [load(save_model(make_model(name), tmp_path_factory.mktemp(name)), dtype) for name, dtype in KINDS]


@dataclass(frozen=True)
class Circumstances:
    """How a test's requests are served."""

    seed: int
    wrong: float  # the share of guesses that do not come true
    budget: int
    blocks: int
    block_size: int
    caching: bool


@settings(max_examples=40, deadline=None)
@given(
    st.builds(
        Circumstances,
        seed=st.integers(0, 2**32),
        wrong=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
        budget=st.sampled_from([1, 5, 17, 2048]),
        blocks=st.sampled_from([20, 36, 300]),
        block_size=st.sampled_from([4, 16]),
        caching=st.booleans(),
    ),
    st.integers(0, len(KINDS) - 1),
)
def test_any_guess_leaves_every_bit_as_it_is(decoders: list[Decoder], how: Circumstances, kind: int) -> None:
    """Drafts, right and wrong, beside chunks of prompts, prefix hits and preemption."""
    decoder, source = decoders[kind], random.Random(how.seed)
    prompts = [[source.randrange(3, decoder.spec.vocab) for _ in range(source.randint(1, 60))] for _ in range(6)]
    params = [source.choice([LONG, SEEDED, PENALISED]) for _ in prompts]
    forms = [source.choice([None, None, *FORMS]) for _ in prompts]

    def submit(harness: Harness, place: int) -> Request:
        form = forms[place]
        return harness.submit(prompts[place], params[place], constraint=None if form is None else form.start())

    plain = Harness(decoder, caching=False)
    wanted = [plain.finish([submit(plain, place)])[0] for place in range(len(prompts))]
    answers = {tuple(prompt): answer.tokens for prompt, answer in zip(prompts, wanted, strict=True)}
    harness = Harness(
        decoder,
        blocks=max(how.blocks, -(-100 // how.block_size) + 1),  # the longest fits
        block_size=how.block_size,
        budget=how.budget,
        caching=how.caching,
        drafter=Prophet(answers, how.wrong, source),
        pacer=FreeOfCharge(),
    )
    requests = []
    for place in range(len(prompts)):
        requests.append(submit(harness, place))
        for _ in range(source.randint(0, 4)):
            harness.engine.step()
    assert_same_bits(harness.finish(requests), wanted)


def test_guesses_that_come_true_save_steps(decoders: list[Decoder]) -> None:
    prompts = [[3, 4, 5, 6] * 3, [9, 8, 7] * 4]
    wanted = Harness(decoders[0], caching=False).together(prompts, LONG)
    answers = {tuple(prompt): answer.tokens for prompt, answer in zip(prompts, wanted, strict=True)}
    pacer = FreeOfCharge()
    prophet = Prophet(answers, 0.0, random.Random(1))
    harness = Harness(decoders[0], caching=False, drafter=prophet, pacer=pacer)
    assert_same_bits(harness.together(prompts, LONG), wanted)
    assert pacer.drafted > LONG.max_tokens
    assert pacer.steps < LONG.max_tokens / 2, "nearly every step gave one token"


def test_an_answer_ends_where_it_would_have(decoders: list[Decoder]) -> None:
    """Neither a stop token nor the length is passed by what was guessed behind it."""
    prompt = [3, 4, 5, 6]
    whole = Harness(decoders[0], caching=False).together([prompt], LONG)[0].tokens
    for length in (1, 2, 3, 7, 16, 17):
        prophet = Prophet({tuple(prompt): [*whole, *whole]}, 0.0, random.Random(length))
        harness = Harness(decoders[0], drafter=prophet, pacer=FreeOfCharge())
        request = harness.submit(prompt, replace(LONG, max_tokens=40, stop_token_ids=(whole[length],)))
        harness.finish([request])
        first = whole.index(whole[length])  # it may have been said before
        assert request.output_ids[: first + 1] == whole[: first + 1]
        assert request.finish_reason is FinishReason.STOP
        assert request.num_output == first + 1
        assert harness.scheduler.stats().used_blocks == 0


def test_nothing_is_guessed_while_steps_overlap(decoders: list[Decoder]) -> None:
    """Nor is anything while they do for some requests only: one with penalties comes and goes among the others."""
    prompts = [[3, 4, 5, 6] * 3, [9, 8, 7] * 4, [5, 6, 7]]
    params = [LONG, replace(LONG, max_tokens=30), replace(PENALISED, max_tokens=15)]
    plain = Harness(decoders[0], caching=False)
    wanted = [plain.finish([plain.submit(*item)])[0] for item in zip(prompts, params, strict=True)]
    answers = {tuple(prompt): answer.tokens for prompt, answer in zip(prompts, wanted, strict=True)}
    for late in range(8):
        pacer, prophet = FreeOfCharge(), Prophet(answers, 0.2, random.Random(late))
        harness = Harness(decoders[0], caching=False, overlap=True, drafter=prophet, pacer=pacer)
        requests = [harness.submit(*item) for item in zip(prompts[:2], params[:2], strict=True)]
        for _ in range(late):
            harness.engine.step()
        assert pacer.drafted == 0
        requests.append(harness.submit(prompts[2], params[2]))
        assert_same_bits(harness.finish(requests), wanted)
        assert pacer.drafted > 0, "steps that do not overlap may guess"


def test_rows_after_guesses_are_drawn_as_if_these_were_known() -> None:
    """The number that draws a token is that of its place, and an answer may end no earlier for a guess."""
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(3)).repeat(4, 1)
    params = SamplingParams(temperature=1.5, seed=11, min_tokens=3, max_tokens=9, frequency_penalty=2.0)
    request = Request(id="r", tokens=[1, 2], params=params, arrival=0.0)
    guesses = [(7,) * ahead for ahead in range(4)]
    outcomes = Sampler(eos_ids=[0]).sample(logits.clone(), [request] * 4, guesses).wait()
    together = [outcome.token_id for outcome in outcomes]
    apart = []
    for _ in range(4):
        (outcome,) = Sampler(eos_ids=[0]).sample(logits[:1].clone(), [request]).wait()
        apart.append(outcome.token_id)
        request.tokens.append(7)
    assert together == apart


def test_the_real_model_says_the_same_with_drafts_and_without(smollm2_gguf: Path) -> None:
    """As it is served, in bfloat16, guessing by what was said before."""
    tokenizer = load_tokenizer(str(smollm2_gguf))
    asked = ["Write ten times: I must not guess.", "Count from one to thirty.", "What is the capital of France?"]
    prompts = [tokenizer.render_chat([{"role": "user", "content": text}]) for text in asked]
    answers = []
    for guesses in (0, 15):
        config = EngineConfig(
            model=str(smollm2_gguf),
            device="cpu",
            max_model_len=512,
            kv_cache_memory_bytes=32 << 20,
            num_speculative_tokens=guesses,
        )
        engine = assemble(config, tokenizer, NoMetrics()).engine
        engine._pacer = FreeOfCharge()  # the real one may find that guesses are too dear on this machine
        requests = [
            Request(id=f"{number}", tokens=list(prompt), params=replace(params, max_tokens=48), arrival=0.0)
            for number, (prompt, params) in enumerate((p, q) for p in prompts for q in (LONG, SEEDED))
        ]
        for request in requests:
            engine.add(request)
        steps = 0
        while engine.has_work:
            engine.step()
            steps += 1
        answers.append((steps, [request.output_ids for request in requests]))
    assert answers[1][1] == answers[0][1]
    assert answers[1][0] < answers[0][0], "no guess came true"
