"""Faults in the step thread, each put in where it could happen: who ends by them, and who gets the same tokens."""

from __future__ import annotations

from typing import Any

import pytest

from late_device import EOS, LateDevice, answer
from octavo_engine.engine import MAX_FAILED_STEPS, Engine
from octavo_engine.errors import EngineDead
from octavo_engine.output import Delta
from octavo_engine.request import PROMISED, FinishReason, Request
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.scheduler import Scheduler
from scheduling_helpers import request
from scripted_engine import CountingMetrics, NumberText, Scripted

ERROR = FinishReason.ERROR


def added(parts: Scripted, *firsts: int, max_tokens: int = 4) -> list[Request]:
    """Requests whose prompts are those tokens, in the queue."""
    items = [request([first], max_tokens=max_tokens) for first in firsts]
    for item in items:
        parts.engine.add(item)
    return items


def finish(parts: Scripted) -> dict[str, list[Delta]]:
    """All deltas by request."""
    deltas: dict[str, list[Delta]] = {}
    while parts.engine.has_work:
        for output in parts.engine.step():
            deltas.setdefault(output.request.id, []).append(output.delta)
    return deltas


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def fails(*_: Any) -> Any:
    raise RuntimeError("injected")


def test_a_request_whose_text_cannot_be_begun_ends_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Scripted()
    (good,) = added(parts, 50)
    with monkeypatch.context() as patched:
        patched.setattr(parts.engine, "_detokenizer", fails)
        bad = request([60])
        output = parts.engine.add(bad)
    assert output is not None
    assert (output.request, output.delta.finish_reason, bad.finish_reason) == (bad, ERROR, ERROR)
    assert bad in parts.metrics.ended
    assert text_of(finish(parts)[good.id]) == "51 52 53 54 ."
    assert bad.id in caplog.text


def test_a_text_that_cannot_be_ended_gives_its_blocks_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Scripted()
    good, bad = added(parts, 50, 60)
    parts.engine.step()
    with monkeypatch.context() as patched:
        patched.setattr(NumberText, "finish", fails)
        output = parts.engine.abort(bad.id)
    assert output is not None
    assert output.delta.finish_reason is FinishReason.ABORT
    assert text_of(finish(parts)[good.id]) == "52 53 54 ."
    assert parts.cache.num_used == 0


@pytest.mark.parametrize("steps_before", [0, 1, 2])
def test_when_no_batch_can_be_decided_all_end_and_the_next_are_served(
    steps_before: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Scripted(seqs=2)
    items = added(parts, 50, 60, 70)  # two run, one waits
    for _ in range(steps_before):
        parts.engine.step()
    with monkeypatch.context() as patched:
        half_done = parts.scheduler._admit

        def admit_and_fail(*arguments: Any, **named: Any) -> None:
            half_done(*arguments, **named)
            raise RuntimeError("injected")

        patched.setattr(parts.scheduler, "_admit", admit_and_fail)
        outputs = parts.engine.step()
    assert {output.request for output in outputs if output.delta.finish_reason is ERROR} == set(items)
    assert not parts.engine.has_work
    assert {item.finish_reason for item in items} == {ERROR}
    assert [item for item in items if item.blocks] == []
    assert parts.metrics.ended == items
    assert (parts.cache.num_used, parts.cache.num_free) == (0, 64)
    assert parts.engine.snapshot.used_blocks == 0
    assert sum(parts.engine.snapshot.waiting.values()) == 0

    (again,) = added(parts, 50)
    assert text_of(finish(parts)[again.id]) == "51 52 53 54 ."


@pytest.mark.parametrize("good_steps", [0, 1])
def test_it_gives_up_only_when_it_fails_again_and_again(
    good_steps: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = Scripted()
    for _ in range(MAX_FAILED_STEPS - 1):
        added(parts, 50)
        with monkeypatch.context() as patched:
            patched.setattr(parts.scheduler, "schedule", fails)
            parts.engine.step()
    for _ in range(good_steps):
        added(parts, 50, max_tokens=1)
        parts.engine.step()
    added(parts, 50)
    monkeypatch.setattr(parts.scheduler, "schedule", fails)
    if good_steps:
        assert [output.delta.finish_reason for output in parts.engine.step()] == [ERROR]
    else:
        with pytest.raises(EngineDead):
            parts.engine.step()


def test_a_step_in_the_air_is_waited_for_before_its_blocks_are_given_anew(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device, cache = LateDevice(2), KVCache(8, 2)
    scheduler = Scheduler(cache, max_num_batched_tokens=16, max_num_seqs=4)
    engine = Engine(
        scheduler=scheduler,
        runner=device,
        metrics=CountingMetrics(),
        detokenizer=lambda _: NumberText(),
        eos_ids=frozenset({EOS}),
        max_model_len=1000,
        overlap=True,
    )
    first, second = request([1, 2, 3], max_tokens=8), request([1, 2, 3], max_tokens=8)
    engine.add(first)
    engine.step()
    assert device.flying
    with monkeypatch.context() as patched:
        patched.setattr(scheduler, "schedule", fails)
        (output,) = engine.step()
    assert (output.request, output.delta.finish_reason) == (first, ERROR)
    assert not device.flying
    assert PROMISED not in first.tokens
    assert cache.num_free == 8
    engine.add(second)
    while engine.has_work:
        engine.step()
    assert second.tokens == answer([1, 2, 3], 8)
