"""Steps that are decided and launched while the one before is computed: the same answers, and every block accounted."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from late_device import EOS, answer
from late_engine import LateEngine
from octavo_engine.errors import EngineDead
from octavo_engine.request import PROMISED, FinishReason, Request, SamplingParams

_ids = count()
PROMPTS = st.lists(st.integers(1, 3), min_size=1, max_size=9)  # so few ids that prompts begin alike
PENALTIES = st.sampled_from([0.0, 0.0, 0.5])
ARRIVALS = st.tuples(PROMPTS, st.integers(1, 8), st.integers(0, 12), st.integers(0, 2), PENALTIES)


class Overlapping(LateEngine):
    """An engine that is a step ahead of what it knows."""

    def __init__(self, **options: Any) -> None:
        super().__init__(overlap=True, **options)

    def add(self, prompt: list[int], max_tokens: int, **fields: Any) -> Request:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, presence_penalty=fields.pop("penalty", 0.0))
        request = Request(id=f"r{next(_ids)}", tokens=list(prompt), params=params, arrival=0.0, **fields)
        self.engine.check(request)
        self.engine.add(request)
        return request

    def check(self) -> None:
        """No block is lost or in two places, whatever is in flight."""
        assert self.cache.num_free + self.cache.num_cached + self.cache.num_used == self.cache.num_blocks
        assert len(self.device.flying) <= 1


@settings(max_examples=300, deadline=None)
@given(
    arrivals=st.lists(ARRIVALS, min_size=1, max_size=8),
    aborts=st.lists(st.tuples(st.integers(1, 25), st.integers(0, 7)), max_size=3),
    options=st.fixed_dictionaries(
        {
            "blocks": st.sampled_from([9, 12, 64]),
            "seqs": st.integers(1, 5),
            "budget": st.integers(2, 12),
            "policy": st.sampled_from(["fcfs", "priority", "cache-aware"]),
        }
    ),
)
def test_answers_are_those_of_steps_one_by_one(arrivals, aborts, options):
    parts = Overlapping(**options)
    requests: dict[int, Request] = {}
    ends: dict[Request, list[FinishReason]] = {}
    for step in range(400):
        for number, (prompt, tokens, at, priority, penalty) in enumerate(arrivals):
            if at == step:
                requests[number] = parts.add(prompt, tokens, priority=priority, penalty=penalty)
        ended = [parts.engine.abort(requests[who].id) for when, who in aborts if when == step and who in requests]
        for output in [*(output for output in ended if output), *parts.engine.step()]:
            if output.delta.finish_reason is not None:
                ends.setdefault(output.request, []).append(output.delta.finish_reason)
        parts.check()
        if step > 12 and not parts.engine.has_work:
            break
    assert not parts.engine.has_work
    assert parts.cache.num_used == 0
    assert parts.device.flying == []
    for number, request in requests.items():
        (reason,) = ends[request]
        prompt, tokens = arrivals[number][:2]
        expected = answer(prompt, tokens)
        if reason is FinishReason.ABORT:
            assert request.tokens == expected[: request.num_tokens]
        else:
            assert (request.tokens, reason is FinishReason.STOP) == (expected, expected[-1] == EOS)


def endless(tokens: int) -> list[int]:
    """A prompt whose answer of so many tokens has no end token."""
    return next(prompt for n in range(1, 99) if EOS not in answer(prompt := [3, n % 4 + 1, n // 4 + 1], tokens))


def test_a_step_is_launched_before_the_tokens_of_the_last_are_known():
    parts, prompt = Overlapping(), endless(6)
    request = parts.add(prompt, 6)
    assert parts.engine.step() == []
    assert request.tokens[-1] == PROMISED
    assert [output.request for output in parts.engine.step()] == [request]
    assert parts.device.most == 2
    while parts.engine.has_work:
        parts.engine.step()
    assert request.tokens == answer(prompt, 6)


def test_steps_are_one_by_one_while_somebody_needs_its_own_tokens():
    parts, prompt = Overlapping(), endless(8)
    request, other = parts.add(prompt, 4, penalty=0.5), parts.add(prompt, 8)
    while request.finish_reason is None:
        assert len(parts.engine.step()) >= 1
        assert PROMISED not in request.tokens + other.tokens
    assert parts.device.most == 1
    while parts.engine.has_work:
        parts.engine.step()
    assert parts.device.most == 2
    assert other.tokens == answer(prompt, 8)


def test_no_step_goes_beyond_the_last_token_that_a_request_may_have():
    """A slot after it could need a block that there is none for."""
    prompt = endless(4)
    parts = Overlapping(blocks=3)  # 7 tokens, of which 6 are computed
    request = parts.add(prompt, 3)
    while parts.engine.has_work:
        parts.engine.step()
    assert (request.tokens, request.num_preemptions) == (answer(prompt, 3), 0)
    assert parts.metrics.steps == 3


def test_a_request_that_ends_unseen_leaves_no_promise_behind():
    parts = Overlapping()
    request = parts.add([1, 2, 3], 6)
    parts.engine.step()
    output = parts.engine.abort(request.id)
    assert output is not None
    assert request.tokens == [1, 2, 3]
    assert parts.engine.has_work, "a step is in flight"
    assert parts.engine.step() == []
    assert not parts.engine.has_work


def test_a_step_that_fails_after_its_launch_is_the_end():
    """What was launched after it may rest on keys and values that are not there."""
    parts = Overlapping()
    parts.add([1, 2, 3], 6)
    parts.engine.step()
    parts.device.flying[0].wait = broken  # type: ignore[method-assign]
    with pytest.raises(EngineDead, match="after it was launched"):
        parts.engine.step()


def broken() -> Any:
    raise RuntimeError("device lost")
