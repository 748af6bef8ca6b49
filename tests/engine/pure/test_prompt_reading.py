"""What is read of prompts is read once, whatever happens to their requests, and who wants no more ends there."""

from __future__ import annotations

import math
from array import array
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from late_device import EOS, answer, told_of
from late_engine import LateEngine
from octavo_engine.batch import Batch, Known, Read, Slice
from octavo_engine.engine import Output
from octavo_engine.errors import PromptTooLong
from octavo_engine.prompt_reading import HiddenSum, PromptLogprobs, PromptReading, ScoredToken
from octavo_engine.request import FinishReason, Pooling, Request, SamplingParams

WANTED = ("nothing", "logprobs", "last", "mean")
_ids = count()


def request(prompt: list[int], wanted: str = "logprobs", max_tokens: int = 4, **fields: Any) -> Request:
    """One that wants that of its prompt; embeddings generate nothing."""
    params = SamplingParams(
        temperature=0.0,
        max_tokens=0 if wanted in ("last", "mean") else max_tokens,
        prompt_logprobs=0 if wanted == "logprobs" else None,
    )
    pooling = Pooling(wanted) if wanted in ("last", "mean") else None
    return Request(id=f"p{next(_ids)}", tokens=list(prompt), params=params, pooling=pooling, arrival=0.0, **fields)


class Parts(LateEngine):
    """An engine over a device that computes and reads as it is told."""

    def add(self, *requests: Request) -> None:
        for item in requests:
            self.engine.check(item)
            self.engine.add(item)

    def finish(self) -> list[Output]:
        outputs: list[Output] = []
        while self.engine.has_work:
            outputs += self.engine.step()
        return outputs


def check_read(parts: Parts, item: Request) -> None:
    """All that was wanted was read, each position once and in order, and it is what the device had there."""
    prompt = item.tokens[: item.num_prompt]
    told = told_of(prompt)[item.to_read.start : item.to_read.stop]
    assert parts.device.positions.get(item, []) == list(item.to_read)
    match item.reading:
        case PromptLogprobs():
            assert list(item.reading.logprobs) == told
        case HiddenSum():
            assert list(item.reading.values) == [sum(told)]
        case _:
            assert not told


PROMPTS = st.lists(st.integers(1, 3), min_size=1, max_size=9)  # so few ids that prompts begin alike
ARRIVALS = st.tuples(PROMPTS, st.sampled_from(WANTED), st.integers(0, 5), st.integers(0, 12), st.integers(0, 2))


@settings(max_examples=200, deadline=None)
@given(
    arrivals=st.lists(ARRIVALS, min_size=1, max_size=8),
    aborts=st.lists(st.tuples(st.integers(1, 25), st.integers(0, 7)), max_size=2),
    options=st.fixed_dictionaries(
        {
            "blocks": st.sampled_from([8, 12, 64]),
            "seqs": st.integers(1, 5),
            "budget": st.integers(2, 12),
            "policy": st.sampled_from(["fcfs", "priority", "cache-aware"]),
            "overlap": st.booleans(),
        }
    ),
)
def test_each_position_is_read_once_whatever_happens(arrivals, aborts, options):
    parts, requests = Parts(**options), {}
    ends: dict[Request, list[FinishReason]] = {}
    for step in range(400):
        for number, (prompt, wanted, tokens, at, priority) in enumerate(arrivals):
            if at == step:
                parts.add(item := request(prompt, wanted, tokens, priority=priority))
                requests[number] = item
        ended = [parts.engine.abort(requests[who].id) for when, who in aborts if when == step and who in requests]
        for output in [*(output for output in ended if output), *parts.engine.step()]:
            if output.delta.finish_reason is not None:
                ends.setdefault(output.request, []).append(output.delta.finish_reason)
        assert parts.cache.num_free + parts.cache.num_cached + parts.cache.num_used == parts.cache.num_blocks
        if step > 12 and not parts.engine.has_work:
            break
    assert not parts.engine.has_work
    assert parts.cache.num_used == 0
    for number, item in requests.items():
        (reason,) = ends[item]
        read = parts.device.positions.get(item, [])
        assert read == list(item.to_read)[: len(read)]
        if reason is FinishReason.ABORT:
            continue
        check_read(parts, item)
        expected = answer(arrivals[number][0], item.params.max_tokens) if item.generates else list(arrivals[number][0])
        assert item.tokens == expected
        assert (reason is FinishReason.STOP) == (item.generates and expected[-1] == EOS)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("prompt", [[5], [5, 6, 7, 8, 9]])
@pytest.mark.parametrize("wanted", WANTED)
def test_a_request_that_generates_nothing_ends_with_its_prompt(wanted, prompt, overlap):
    parts, item = Parts(budget=2, overlap=overlap), request(prompt, wanted, max_tokens=0)
    parts.add(item)
    (output,) = parts.finish()
    assert (output.request, output.delta.finish_reason) == (item, FinishReason.LENGTH)
    assert (item.tokens, item.num_computed, parts.cache.num_used) == (prompt, 0, 0)
    assert (parts.metrics.tokens, parts.metrics.steps, parts.device.chosen) == (0, (len(prompt) + 1) // 2, {})
    check_read(parts, item)


def test_it_may_be_as_long_as_all_there_is_room_for():
    parts = Parts(blocks=4)
    parts.add(item := request([5] * 8, "mean"))
    parts.finish()
    check_read(parts, item)
    with pytest.raises(PromptTooLong):
        parts.engine.check(request([5] * 9, "mean"))
    with pytest.raises(PromptTooLong):
        parts.engine.check(request([5] * 8, "logprobs", max_tokens=1))


@pytest.mark.parametrize(("wanted", "cached"), [("nothing", 6), ("last", 6), ("logprobs", 0), ("mean", 0)])
def test_what_is_to_be_read_is_not_taken_from_the_cache(wanted, cached):
    parts, prompt = Parts(), [5, 6, 7, 8, 9, 10, 11]
    parts.add(request(prompt, "nothing"))
    parts.finish()
    parts.add(item := request(prompt, wanted))
    parts.finish()
    assert item.num_cached == cached
    check_read(parts, item)
    parts.add(after := request(prompt, "nothing"))
    parts.finish()
    assert after.num_cached == 6, "what was computed again is still found"


def test_what_was_read_before_a_preemption_is_taken_from_the_cache_after_it():
    parts = Parts(budget=4, blocks=64, policy="priority", seqs=1)
    prompt = list(range(3, 15))
    parts.add(item := request(prompt, "logprobs", priority=1))
    parts.engine.step()
    parts.engine.step()
    parts.add(request([40], "nothing", max_tokens=1, priority=0))
    parts.engine.step()
    assert (item.num_preemptions, item.num_read) == (1, 8)
    parts.engine.step()
    assert item.num_computed == 12, "eight were found, and four computed"
    parts.finish()
    check_read(parts, item)


def test_siblings_do_not_wait_for_a_prefix_that_they_may_not_use():
    """It would be computed for them, and then once more."""
    parts, prompt = Parts(budget=64, policy="cache-aware", blocks=512), [index % 9 + 1 for index in range(200)]
    first, second = request(prompt, "mean"), request(prompt, "mean")
    parts.add(first)
    parts.engine.step()
    parts.add(second)
    parts.engine.step()
    assert parts.scheduler.stats().waiting["prefix_pending"] == 0
    parts.finish()
    check_read(parts, second)


def test_numbers_that_are_none_end_their_request_alone():
    parts, broken, whole = Parts(), request([5, 6, 7]), request([5, 6, 8])
    computed = parts.device.launch

    def launch(batch: Batch) -> Known:
        values = {broken: math.nan, whole: -math.inf}
        scores = [array("f", [values[read.request], -1]) for read in batch.reading]
        read = [PromptLogprobs(0, score, array("i", [1, 1]), array("f"), array("i")) for score in scores]
        return Known(computed(batch).outcomes, read)

    parts.device.launch = launch  # type: ignore[assignment,method-assign]
    parts.add(broken, whole)
    ended = {output.request: output.delta.finish_reason for output in parts.engine.step()}
    assert ended == {broken: FinishReason.ERROR, whole: None}
    assert isinstance(whole.reading, PromptLogprobs)
    assert list(whole.reading.logprobs) == [-math.inf, -1]


def test_a_read_is_what_of_a_slice_is_still_wanted():
    item = request([1] * 10)
    assert Read.of(Slice(item, 0, 4, False)) == Read(item, 0, 4)
    item.num_read = 3
    assert Read.of(Slice(item, 0, 4, False)) == Read(item, 3, 4)
    assert Read.of(Slice(item, 0, 3, False)) is None
    assert Read.of(Slice(item, 8, 2, True)) == Read(item, 8, 9)
    assert Read.of(Slice(item, 9, 1, True)) is None
    embedded = request([1] * 10, "last")
    assert Read.of(Slice(embedded, 8, 2, False)) == Read(embedded, 9, 10)
    assert Read.of(Slice(embedded, 0, 9, False)) is None


def test_pieces_of_scores_are_joined_and_told_token_by_token():
    whole: PromptReading = PromptLogprobs(
        2, array("f", [-1]), array("i", [3]), array("f", [-0.5, -0.75]), array("i", [8, 9])
    )
    whole.join(PromptLogprobs(2, array("f", [-2]), array("i", [1]), array("f", [-2, -4]), array("i", [7, 6])))
    assert list(whole) == [  # type: ignore[call-overload]
        ScoredToken(-1, 3, ((8, -0.5), (9, -0.75))),
        ScoredToken(-2, 1, ((7, -2), (6, -4))),
    ]
    alone = PromptLogprobs(0, array("f", [-1]), array("i", [1]), array("f"), array("i"))
    assert list(alone) == [ScoredToken(-1, 1, ())]


def test_an_embedding_has_the_length_one_and_any_direction():
    found = HiddenSum(array("d", [3, 0]))
    found.join(HiddenSum(array("d", [0, -4])))
    assert found.direction().tolist() == pytest.approx([0.6, -0.8])
    assert HiddenSum(array("d", [0, 0])).direction().tolist() == [0, 0]
    assert not HiddenSum(array("d", [1, math.inf])).sound
