"""What is drawn from logits: frequencies, filters, penalties, seeds; and that neighbours change nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.request import Request, SamplingParams
from octavo_engine.runtime.sampler import Sampler, _candidates

pytestmark = pytest.mark.engine

EOS = 0


def request(tokens: list[int] | None = None, output: list[int] | None = None, **params: object) -> Request:
    made = Request(id="r", tokens=list(tokens or [5]), params=SamplingParams(**params), arrival=0.0)
    made.tokens += output or []
    return made


def sample(logits: list[float], item: Request) -> int:
    return Sampler(eos_ids=[EOS]).sample(torch.tensor([logits]), [item]).wait()[0].token_id


def allowed(logits: list[float], **params: object) -> set[int]:
    """The tokens that may be drawn."""
    values, ids = _candidates(torch.tensor(logits), SamplingParams(**params))
    finite = [index for index, value in enumerate(values.tolist()) if math.isfinite(value)]
    return set(finite if ids is None else ids[finite].tolist())


def test_temperature_zero_takes_the_likeliest():
    assert sample([0.0, 3.0, 1.0], request(temperature=0.0)) == 1


def test_frequencies_follow_the_distribution():
    sampler, item = Sampler(eos_ids=[]), request(temperature=2.0)
    logits = torch.tensor([0.1, 0.4, 0.3, 0.2]).log() * 2
    rows = logits.repeat(200, 1)
    drawn = [out.token_id for _ in range(50) for out in sampler.sample(rows.clone(), [item] * 200).wait()]
    shares = torch.bincount(torch.tensor(drawn), minlength=4) / len(drawn)
    assert torch.allclose(shares, torch.tensor([0.1, 0.4, 0.3, 0.2]), atol=0.02)


LOG = [math.log(p) for p in (0.5, 0.25, 0.15, 0.07, 0.03)]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {0, 1}),
        ({"top_p": 0.5}, {0}),
        ({"top_p": 0.51}, {0, 1}),
        ({"top_p": 0.9}, {0, 1, 2}),
        ({"top_p": 0.901}, {0, 1, 2, 3}),
        ({"top_k": 2, "top_p": 0.7}, {0, 1}),  # of the top two, the first has two thirds
        ({"top_k": 2, "top_p": 0.6}, {0}),
        ({"min_p": 0.2}, {0, 1, 2}),
        ({"top_k": 4, "min_p": 0.2}, {0, 1, 2}),
        ({"top_p": 1e-9}, {0}),
        ({"top_k": 50}, {0, 1, 2, 3, 4}),
    ],
)
def test_filters(params, expected):
    assert allowed(LOG, **params) == expected


@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=60),
    st.floats(0.01, 1.0),
    st.one_of(st.none(), st.integers(1, 70)),
)
@settings(deadline=None)
def test_filters_agree_with_the_plain_definition(logits, top_p, top_k):
    order = sorted(range(len(logits)), key=lambda index: -logits[index])[: top_k or len(logits)]
    weights = torch.tensor([logits[index] for index in order], dtype=torch.float64).softmax(0)
    before = torch.cat((torch.zeros(1, dtype=torch.float64), weights.cumsum(0)[:-1]))
    found = allowed(logits, top_p=top_p, top_k=top_k)
    near = (before - top_p).abs() < 1e-5  # float32 may decide the very edge either way
    sure = sorted((logits[i] for i, b, n in zip(order, before, near, strict=True) if b < top_p and not n), reverse=True)
    kept = sorted((logits[index] for index in found), reverse=True)
    assert kept[: len(sure)] == sure
    assert len(kept) <= len(sure) + int(near.sum())


def test_a_nucleus_wider_than_the_candidates_is_sorted_whole():
    assert len(allowed([0.0] * 5000, top_p=0.9)) in range(4490, 4511)


def test_repetition_penalty_pushes_known_tokens_down_whatever_their_sign():
    logits = [2.0, 1.9, -1.0, -1.05]
    assert sample(logits, request([0], temperature=0.0, repetition_penalty=1.2)) == 1
    assert sample([-9, -9, -1.0, -1.05], request([2], temperature=0.0, repetition_penalty=1.2)) == 3


@pytest.mark.parametrize("penalty", [1e-30, 1e-310, 5e-324])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_penalty_of_nearly_nothing_is_no_fault(penalty: float, temperature: float) -> None:
    """It favours what was there before without end; of several such tokens, one is taken."""
    item = request([2, 3], temperature=temperature, repetition_penalty=penalty, seed=1)
    (drawn,) = Sampler(eos_ids=[EOS]).sample(torch.tensor([[9.0, 9.0, 1.0, 1.0, -1.0]]), [item]).wait()
    assert drawn.error is None
    assert drawn.token_id in (2, 3)


def test_a_logit_that_was_none_before_a_penalty_is_a_fault_still() -> None:
    item = request([2], temperature=0.0, repetition_penalty=1e-310)
    (drawn,) = Sampler(eos_ids=[EOS]).sample(torch.tensor([[9.0, 9.0, math.inf, 1.0]]), [item]).wait()
    assert drawn.error is not None


def test_presence_and_frequency_count_the_output_only():
    logits = [0.0, 1.0, 0.9, 0.0]
    assert sample(logits, request([1, 1], temperature=0.0, presence_penalty=0.5)) == 1
    assert sample(logits, request([1], output=[1], temperature=0.0, presence_penalty=0.5)) == 2
    assert sample(logits, request([3], output=[1, 1], temperature=0.0, frequency_penalty=0.04)) == 1
    assert sample(logits, request([3], output=[1, 1, 1], temperature=0.0, frequency_penalty=0.04)) == 2


def test_bias_and_the_minimum_length():
    assert sample([0.0, 1.0, 0.0], request(temperature=0.0, logit_bias=((2, 5.0),))) == 2
    assert sample([9.0, 1.0, 0.0], request(temperature=0.0, min_tokens=2)) == 1
    assert sample([9.0, 1.0, 0.0], request(temperature=0.0, min_tokens=2, stop_token_ids=(1,))) == 2
    assert sample([9.0, 1.0, 0.0], request(output=[1, 1], temperature=0.0, min_tokens=2)) == EOS


def test_a_seed_repeats_itself_whoever_is_in_the_batch():
    torch.manual_seed(1)
    rows = torch.randn(6, 300)
    seeded = request(temperature=1.0, top_p=0.95, seed=42)
    alone = Sampler(eos_ids=[]).sample(rows[3:4].clone(), [seeded]).wait()[0].token_id
    others = [request(temperature=1.3, top_k=7) for _ in range(6)]
    for place in range(6):
        batch, mixed = list(others), rows.clone()
        batch[place], mixed[place] = seeded, rows[3]
        assert Sampler(eos_ids=[]).sample(mixed, batch).wait()[place].token_id == alone


def test_a_seed_gives_other_numbers_at_other_positions():
    logits = torch.zeros(1, 1000)
    item = request(temperature=1.0, seed=7)
    drawn = set()
    for _ in range(20):
        token = Sampler(eos_ids=[]).sample(logits.clone(), [item]).wait()[0].token_id
        item.tokens.append(token)
        drawn.add(token)
    assert len(drawn) > 15


def test_logprobs_are_the_models_own_before_anything_is_applied():
    logits = torch.tensor([[1.0, 2.0, 0.5, -1.0]])
    item = request([1], temperature=0.0, logprobs=2, repetition_penalty=5.0, logit_bias=((3, 50.0),))
    outcome = Sampler(eos_ids=[]).sample(logits.clone(), [item]).wait()[0]
    expected = logits[0].log_softmax(-1)
    assert outcome.token_id == 3
    assert outcome.logprob is not None
    assert outcome.logprob.logprob == pytest.approx(float(expected[3]))
    assert [entry.token_id for entry in outcome.top_logprobs] == [1, 0]
    assert outcome.top_logprobs[0].logprob == pytest.approx(float(expected[1]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_of_nonsense_is_an_error_of_its_own(bad):
    logits = torch.tensor([[0.0, 1.0], [bad, 0.0], [1.0, 0.0]])
    for params in ({"temperature": 0.0}, {"temperature": 1.0, "top_p": 0.5}):
        items = [request(temperature=0.0), request(**params), request(temperature=0.0)]
        outcomes = Sampler(eos_ids=[]).sample(logits.clone(), items).wait()
        assert [outcome.error is None for outcome in outcomes] == [True, False, True]
        assert [outcomes[0].token_id, outcomes[2].token_id] == [1, 0]


def test_everything_forbidden_is_an_error():
    bias = tuple((token, -math.inf) for token in range(3))
    assert Sampler(eos_ids=[]).sample(torch.zeros(1, 3), [request(temperature=0.0, logit_bias=bias)]).wait()[0].error


@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 50.0])
def test_extreme_temperatures_stay_finite(temperature):
    item = replace(request(), params=SamplingParams(temperature=temperature, top_p=0.9))
    assert Sampler(eos_ids=[]).sample(torch.tensor([[1e4, -1e4, 3.0]]), [item]).wait()[0].error is None


def test_how_many_logprobs_a_row_gets_is_its_own_affair():
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(2))
    logits[:, 7] = logits[:, 3] = 9.0  # two likeliest: which comes first must not depend on neighbours either
    items = [request(temperature=0.0, logprobs=wanted) for wanted in (2, None, 0, 5, 2)]
    together = Sampler(eos_ids=[]).sample(logits.clone(), items).wait()
    alone = [
        Sampler(eos_ids=[]).sample(logits[row : row + 1].clone(), [item]).wait()[0] for row, item in enumerate(items)
    ]
    assert together == alone
    assert [len(outcome.top_logprobs) for outcome in together] == [2, 0, 0, 5, 2]
    assert together[1].logprob is None
