"""Greedy tokens are transformers' own, whatever the schedule: whole, chunked, cached, mixed, preempted.

transformers reads each prompt with Octavo's answer appended, once: if at every position its likeliest token is the
one that Octavo chose, its own greedy generation is that answer, by induction. A near-tie of its top two (under 1e-4)
is reported, not hidden, and is the only place where another token is let pass.

Tokens are held against transformers in float32; logits against transformers in float64, within 1e-4. Over these
prompts, whose largest logits are near 34, Octavo's worst logit is off from those by 7.3e-5 with the C++ kernels, whose
products are summed in float64; transformers' own float32 by 1.2e-4. torch's products, which serve where the kernels
cannot run, are no better than that (1.1e-4): there the bound is 2e-4.

All prompts go through in one batch, and every second one's logits are compared; every other way to schedule them takes
some of each length. The long form takes all of them through each, and compares all.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_harness import GREEDY, Answered, Harness
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import library
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.loading import load_model
from octavo_engine.request import SamplingParams
from octavo_engine.scheduling.policy import Policy
from octavo_engine.tokenizer import Tokenizer, load_tokenizer

pytestmark = pytest.mark.engine

NEAR_TIE = 1e-4
# The average is over a prompt; transformers' own float32 is at 2.6e-5.
WORST_LOGIT, AVERAGE_LOGIT = (2e-4, 5e-5) if library.load() is None else (1e-4, 2e-5)

# At, before and after the edges of blocks of 16; and some of everyday length.
EDGES = [edge + step for edge in (16, 32, 48, 64, 80, 128) for step in (-1, 0, 1)]
LENGTHS = [*range(1, 13), *EDGES, 13, 14, 18, 20, 22, 24, 26, 28, 30, 34, 36, 40, 44, 50, 62, 66, 257]

QUESTIONS = [
    "What is the capital of France?",
    "日本の首都はどこですか。",
    "Write a haiku about paged memory 📄.",
    "List three prime numbers and explain why each is prime.",
]


@dataclass
class Oracle:
    """transformers' logits for a prompt and an answer; kept, since every schedule asks about the same ones."""

    model: Any
    seen: dict[tuple[int, ...], tuple[list[int], torch.Tensor]] = field(default_factory=dict)

    def logits(self, prompt: tuple[int, ...], answer: list[int]) -> torch.Tensor:
        """`[len(answer), vocab]`: what each token of the answer was to be chosen from."""
        known, logits = self.seen.get(prompt, ([], torch.empty(0)))
        if known[: len(answer)] != answer:
            with torch.inference_mode():
                read = self.model(torch.tensor([[*prompt, *answer[:-1]]]), logits_to_keep=len(answer))
            logits = read.logits[0]
            self.seen[prompt] = (answer, logits)
        return logits[: len(answer)]


@dataclass(frozen=True)
class Oracles:
    """Who is asked for what. Of the prompts that are spared only tokens are compared: float64 takes its time."""

    tokens: Oracle
    logits: Oracle
    spared: frozenset[tuple[int, ...]]


@pytest.fixture(scope="module")
def decoder(smollm2_gguf) -> Decoder:
    kernels = choose_attention("torch" if library.load() is None else "cpu")  # what `auto` is here
    return load_model(str(smollm2_gguf), dtype=torch.float32, device=torch.device("cpu"), kernels=kernels)


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf) -> Tokenizer:
    return load_tokenizer(str(smollm2_gguf))


@pytest.fixture(scope="module")
def oracle(smollm2_reference, smollm2_exact, prompts) -> Oracles:
    return Oracles(Oracle(smollm2_reference), Oracle(smollm2_exact), frozenset(prompts[1::2]))


@pytest.fixture(scope="module")
def prompts(tokenizer) -> list[tuple[int, ...]]:
    """Over fifty prompts: slices of English prose at every interesting length, and chats."""
    ids = tokenizer.encode(prose(), add_special_tokens=False)
    slices = [tuple(ids[37 * i : 37 * i + length]) for i, length in enumerate(LENGTHS)]
    assert [len(item) for item in slices] == LENGTHS
    return slices + [tuple(tokenizer.render_chat([{"role": "user", "content": text}])) for text in QUESTIONS]


def prose() -> str:
    """Over two thousand tokens of English: the project's own licence."""
    return (Path(__file__).parents[2] / "LICENSE").read_text()


def check_logits(prompt: tuple[int, ...], answer: Answered, exact: Oracle) -> None:
    off = (torch.stack(answer.logits) - exact.logits(prompt, answer.tokens)).abs()
    assert off.max() < WORST_LOGIT, f"a logit of a prompt of {len(prompt)} tokens is off by {off.max():.2e}"
    assert off.mean() < AVERAGE_LOGIT, f"logits of a prompt of {len(prompt)} tokens are off by {off.mean():.2e}"


def check(answers: list[Answered], prompts: list[tuple[int, ...]], oracle: Oracles) -> None:
    """Every token transformers' own, every logit its up to float32's rounding."""
    ties = []
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = oracle.tokens.logits(prompt, answer.tokens)
        if prompt not in oracle.spared:
            check_logits(prompt, answer, oracle.logits)
        for index, token in enumerate(answer.tokens):
            if token == int(expected[index].argmax()):
                continue
            first, second = expected[index].topk(2).values.tolist()
            assert first - second < NEAR_TIE, (
                f"prompt of {len(prompt)} tokens, output {index}: {token} is not transformers'"
            )
            ties.append((len(prompt), index, first - second))
    if ties:
        warnings.warn(f"near-ties (prompt length, output index, gap): {ties}", stacklevel=1)


def room(prompts: list[tuple[int, ...]], block_size: int = 16) -> int:
    """Blocks for all of them and their answers at once: filling more of a cache than is used takes a second each."""
    return sum((len(prompt) + GREEDY.max_tokens) // block_size + 1 for prompt in prompts)


def test_there_are_fifty_prompts(prompts):
    assert len(prompts) >= 50


@pytest.mark.filterwarnings("default:near-ties")
class TestSmolLM2:
    """One test for each way a prompt can be scheduled."""

    whole = False

    def some(self, prompts: list[tuple[int, ...]], step: int) -> list[tuple[int, ...]]:
        """Every so many of them; all in the long form."""
        return prompts if self.whole else prompts[::step]

    def test_together_in_one_batch(self, decoder, prompts, oracle):
        check(Harness(decoder, caching=False).together(prompts), prompts, oracle)

    def test_alone_and_whole(self, decoder, prompts, oracle):
        """Fewer tokens each: alone, every token is a step of its own."""
        chosen = self.some(prompts, 2)
        harness = Harness(decoder, blocks=room([max(chosen, key=len)]), caching=False)
        check(harness.alone(chosen, replace(GREEDY, max_tokens=6)), chosen, oracle)

    @pytest.mark.parametrize(("budget", "step"), [(7, 8), (16, 6), (61, 4)])
    def test_in_chunks_beside_decodes(self, decoder, prompts, oracle, budget, step):
        """Small budgets cut prompts in every possible place, and take many steps."""
        chosen = self.some(prompts, step)
        harness = Harness(decoder, blocks=room(chosen), budget=budget, caching=False)
        check(harness.together(chosen), chosen, oracle)

    def test_with_a_prefix_hit(self, decoder, prompts, oracle):
        chosen = self.some(prompts, 2)
        harness = Harness(decoder, blocks=2 * room(chosen))
        harness.together(chosen)
        answers = harness.together(chosen)
        assert sum(answer.request.num_cached for answer in answers) > sum(map(len, chosen)) // 2
        check(answers, chosen, oracle)

    def test_with_a_prefix_hit_in_chunks(self, decoder, prompts, oracle):
        chosen = self.some(prompts, 6)
        harness = Harness(decoder, blocks=2 * room(chosen), budget=24)
        harness.together(chosen)
        check(harness.together(chosen), chosen, oracle)

    def test_without_chunking(self, decoder, prompts, oracle):
        chosen = self.some(prompts, 4)
        harness = Harness(decoder, blocks=room(chosen), budget=300, chunked=False)
        check(harness.together(chosen), chosen, oracle)

    @pytest.mark.parametrize("caching", [True, False])
    def test_after_preemption(self, decoder, prompts, oracle, caching):
        """A pool that holds about three of them, which grow by two blocks each: some must give theirs back."""
        chosen = self.some([prompt for prompt in prompts if 40 <= len(prompt) <= 100], 2)
        answers = Harness(decoder, blocks=14, caching=caching).together(chosen, replace(GREEDY, max_tokens=40))
        assert sum(answer.request.num_preemptions for answer in answers) >= 3
        check(answers, chosen, oracle)

    def test_after_losing_a_place_to_a_higher_priority(self, decoder, prompts, oracle):
        chosen = [prompt for prompt in prompts if 30 <= len(prompt) <= 64][::2]
        harness = Harness(decoder, blocks=20, seqs=2, policy=Policy(level_seconds=10.0))
        low = [harness.submit(prompt, priority=1) for prompt in chosen[2:]]
        for _ in range(4):
            harness.engine.step()
        urgent = [harness.submit(prompt, priority=0) for prompt in chosen[:2]]
        answers = harness.finish([*urgent, *low])
        assert sum(answer.request.num_preemptions for answer in answers) == 2
        check(answers, chosen, oracle)

    def test_siblings_that_wait_for_a_prefix(self, decoder, prompts, oracle):
        stem = max(prompts, key=len)[:129]
        chosen = [
            stem,
            *(stem[:cut] + prompt[:9] for cut, prompt in zip((96, 97, 80, 127), prompts[20:], strict=False)),
        ]
        harness = Harness(decoder, blocks=room(chosen), budget=32, policy=Policy(window_seconds=10.0))
        answers = harness.together(chosen)
        assert all(answer.request.num_cached >= 80 for answer in answers[1:])
        check(answers, chosen, oracle)

    @pytest.mark.parametrize("block_size", [1, 5, 32])
    def test_other_block_sizes(self, decoder, prompts, oracle, block_size):
        chosen = self.some(prompts, 8)
        harness = Harness(decoder, block_size=block_size, blocks=2 * room(chosen, block_size))
        harness.together(chosen[::2])
        check(harness.together(chosen), chosen, oracle)

    def test_beside_neighbours_that_sample(self, decoder, prompts, oracle):
        """Random, penalised and aborted neighbours change nothing."""
        harness = Harness(decoder, blocks=120)
        wild = SamplingParams(temperature=1.5, top_p=0.9, repetition_penalty=1.3, max_tokens=30, logprobs=3)
        chosen = self.some(prompts, 4)
        strangers = [harness.submit(prompt, wild) for prompt in prompts[1::8]]
        mine = [harness.submit(prompt, GREEDY) for prompt in chosen]
        for _ in range(5):
            harness.engine.step()
        for stranger in strangers[::2]:
            harness.engine.abort(stranger.id)
        check(harness.finish(mine), chosen, oracle)


@pytest.mark.soak
class TestEveryPrompt(TestSmolLM2):
    """All prompts, each way, and none spared."""

    whole = True

    @pytest.fixture
    def oracle(self, oracle):
        return replace(oracle, spared=frozenset())
