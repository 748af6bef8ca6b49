"""How likely a prompt's tokens are is what transformers says, however the prompt is computed, and in the same bits
wherever the kernels promise that."""

from __future__ import annotations

import random
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine_harness import GREEDY, Answered, Harness
from local_ranks import load, several_ranks
from octavo_engine.batch import SCORED_ROWS, Batch, Read, Slice
from octavo_engine.kernels.cpu import library
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.parallel import wire
from octavo_engine.prompt_reading import PromptLogprobs
from octavo_engine.request import Request, SamplingParams
from octavo_engine.runtime.inputs import InputBuilder, StepPlan
from octavo_engine.scheduling.policy import Policy
from tiny_models import SIZES, make_model, oracle_logits, save_model

pytestmark = pytest.mark.engine
LENGTHS = (1, 2, 15, 16, 17, 40, 90, SCORED_ROWS + 1)
FAR = 1e-3  # what is promised; the worst here is a hundredth of it
TOP = 3
SCORED = replace(GREEDY, max_tokens=4, prompt_logprobs=TOP)


@pytest.fixture(scope="module")
def oracle() -> Any:
    return make_model("llama")


@pytest.fixture(scope="module")
def path(oracle: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(oracle, tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def decoder(path: Path) -> Decoder:
    return load(path, torch.float32)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    draw = random.Random(0)
    return [[draw.randrange(3, SIZES["vocab_size"]) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module")
def expected(oracle: Any, prompts: list[list[int]]) -> list[torch.Tensor]:
    """transformers' log-probabilities `[tokens - 1, vocab]` of each prompt's tokens from the second on."""
    return [oracle_logits(oracle, torch.tensor(prompt)).log_softmax(-1)[:-1] for prompt in prompts]


def read_of(request: Request) -> PromptLogprobs:
    empty = PromptLogprobs(TOP, array("f"), array("i"), array("f"), array("i"))
    found = request.reading or empty
    assert isinstance(found, PromptLogprobs)
    return found


def check(requests: list[Request], expected: list[torch.Tensor]) -> None:
    """Each token's own log-probability, its rank, and the likeliest beside it."""
    for request, wanted in zip(requests, expected, strict=True):
        found, following = list(read_of(request)), request.tokens[1 : request.num_prompt]
        assert len(found) == len(wanted) == request.num_prompt - 1
        for token, score, row in zip(following, found, wanted, strict=True):
            assert abs(score.logprob - float(row[token])) < FAR
            assert score.rank == 1 + int((row > row[token]).sum())
            ids, values = zip(*score.top, strict=True)
            assert torch.tensor(values).sub(row[list(ids)]).abs().max() < FAR
            assert torch.tensor(values).sub(row.topk(TOP).values).abs().max() < FAR
            assert dict(score.top).get(token, score.logprob) == score.logprob, "the same number in both places"


def scored(answers: list[Answered]) -> list[Request]:
    return [answer.request for answer in answers]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"budget": 7},
        {"budget": 61, "caching": False},
        {"chunked": False, "budget": 90},
        {"block_size": 1},
        {"overlap": True, "budget": 23},
    ],
    ids=str,
)
def test_they_are_transformers_own(decoder, prompts, expected, options: dict[str, Any]) -> None:
    check(scored(Harness(decoder, **options).together(prompts, SCORED)), expected)


def test_a_prompt_that_is_cached_is_computed_for_them_and_no_answer_changes(decoder, prompts, expected) -> None:
    harness = Harness(decoder)
    before = harness.together(prompts)
    answers = harness.together(prompts, replace(GREEDY, prompt_logprobs=TOP))
    check(scored(answers), expected)
    assert {answer.request.num_cached for answer in answers} == {0}
    again = harness.together(prompts)
    assert sum(answer.request.num_cached for answer in again) > sum(LENGTHS) // 2
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in before]
    assert [answer.tokens for answer in again] == [answer.tokens for answer in before]


def test_a_preempted_one_goes_on_where_it_was(decoder, prompts, expected) -> None:
    harness = Harness(decoder, blocks=16, budget=32, seqs=2, policy=Policy(level_seconds=10.0))
    low = [harness.submit(prompt, SCORED, priority=1) for prompt in prompts[5:]]
    for _ in range(3):
        harness.engine.step()
    urgent = [harness.submit(prompt, SCORED, priority=0) for prompt in prompts[:5]]
    answers = harness.finish([*urgent, *low])
    assert sum(item.num_preemptions for item in low) >= 1
    check(scored(answers), expected)


def test_neighbours_get_what_they_get_alone(decoder, prompts, expected) -> None:
    """Greedy, random and embedded ones; the latter, the random ones and those that are aborted may do as they like."""
    alone = Harness(decoder, caching=False).alone(prompts)
    harness = Harness(decoder, caching=False, budget=50)
    wild = SamplingParams(temperature=1.5, max_tokens=9, logprobs=2, prompt_logprobs=1)
    strangers = [harness.submit(prompt, wild) for prompt in prompts[2:5]]
    neighbours = [harness.submit(prompt) for prompt in prompts]
    mine = [harness.submit(prompt, replace(SCORED, max_tokens=0)) for prompt in prompts]
    harness.engine.step()
    harness.engine.abort(strangers[0].id)
    answers = harness.finish(neighbours)
    check(mine, expected)
    for one, other in zip(answers, alone, strict=True):
        assert one.tokens == other.tokens
        assert torch.stack(one.logits).sub(torch.stack(other.logits)).abs().max() < 1e-4


def test_each_gets_as_many_of_the_likeliest_as_it_asked_for(decoder, prompts) -> None:
    harness = Harness(decoder)
    requests = [harness.submit(prompts[-1], replace(SCORED, prompt_logprobs=top)) for top in (0, 5, 2)]
    harness.finish(requests)
    none, five, two = ([score.top for score in read_of(request)] for request in requests)
    assert none == [()] * SCORED_ROWS
    assert {len(top) for top in five} == {5}
    assert two == [top[:2] for top in five]


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_share_a_vocabulary_tell_them_together(path, prompts, expected, size: int) -> None:
    """In pieces beside decodes and steps that sample nothing."""
    with several_ranks(path, size, budget=37, caching=False) as harness:
        check(scored(harness.together(prompts, SCORED)), expected)


@pytest.mark.skipif(library.load() is None, reason="the CPU kernels do not run here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_bits_are_the_same_alone_in_chunks_and_together(path, prompts, dtype: torch.dtype) -> None:
    decoder = load(path, dtype)
    assert decoder.batch_invariant
    harnesses = [Harness(decoder, caching=False), Harness(decoder, budget=13), Harness(decoder, budget=64)]
    ways = [harnesses[0].alone(prompts, SCORED), *(harness.together(prompts, SCORED) for harness in harnesses[1:])]
    first, *others = ([read_of(answer.request) for answer in answers] for answers in ways)
    assert all(other == first for other in others)


def test_no_more_logits_are_in_memory_than_a_few_rows_have(path, prompts) -> None:
    decoder = load(path, torch.float32)
    seen: list[int] = []

    class Watched:
        forward = staticmethod(decoder.forward)

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            seen.append(len(hidden))
            return decoder.logits(hidden)

    harness = Harness(decoder, wrap=lambda steps: replace(steps, model=Watched()))
    harness.finish([harness.submit(prompt, replace(SCORED, max_tokens=1)) for prompt in prompts])
    assert max(seen) == SCORED_ROWS
    assert sum(seen) == sum(LENGTHS), "each position once: the last ones for the next token"


def test_a_step_that_scores_arrives_at_other_ranks_as_it_was_sent() -> None:
    item = Request(id="a", tokens=[5, 6, 7, 8, 9], params=SCORED, arrival=0.0, blocks=[3, 1])
    other = Request(id="b", tokens=[4], params=GREEDY, arrival=0.0, blocks=[2])
    pieces = (Slice(other, 0, 1, True), Slice(item, 1, 3, False))
    item.num_read = 2
    reading = tuple(read for piece in pieces if (read := Read.of(piece)) is not None)
    plan = InputBuilder(4, torch.device("cpu")).plan(Batch(slices=pieces, reading=reading))
    assert plan.scored.tolist() == [2, 3]
    came = wire.decode(wire.encode(plan))
    for name in StepPlan.__dataclass_fields__:
        assert (getattr(came, name) == getattr(plan, name)).all(), name
    for rows in ([4], [-1]):
        with pytest.raises(wire.NotAStep):
            wire.decode(wire.encode(replace(plan, scored=np.array(rows))))
