"""The step and the thread around it: order, ends, containment, drain."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from octavo_engine.async_engine import AsyncEngine, Stream
from octavo_engine.errors import Draining, EngineDead, Interrupted, Overloaded, PromptTooLong, RequestFailed
from octavo_engine.output import Delta
from octavo_engine.pulse import Phase
from octavo_engine.request import FinishReason, RejectReason, SamplingParams
from patience import PATIENCE_SECONDS
from scheduling_helpers import request
from scripted_engine import Clock, Scripted


def finish(parts: Scripted) -> dict[str, list[Delta]]:
    """Step to the end; the deltas by request."""
    deltas: dict[str, list[Delta]] = {}
    for _ in range(1000):
        if not parts.engine.has_work:
            return deltas
        for output in parts.engine.step():
            deltas.setdefault(output.request.id, []).append(output.delta)
    raise AssertionError("no end")


class TestEngine:
    def test_a_request_runs_to_its_length(self):
        parts, item = Scripted(), request([5, 6, 7], max_tokens=3)
        parts.engine.add(item)
        deltas = finish(parts)[item.id]
        assert "".join(delta.text for delta in deltas) == "8 9 10 ."
        assert [delta.finish_reason for delta in deltas] == [None, None, FinishReason.LENGTH]
        assert parts.metrics.tokens == 3
        assert parts.metrics.ended == [item]

    def test_an_end_token_is_not_part_of_the_text(self):
        parts, item = Scripted(), request([-3], max_tokens=9)
        parts.engine.add(item)
        deltas = finish(parts)[item.id]
        assert "".join(delta.text for delta in deltas) == "-2 -1 ."
        assert (deltas[-1].finish_reason, deltas[-1].tokens) == (FinishReason.STOP, ())

    @pytest.mark.parametrize(
        ("change", "reason", "why"),
        [
            ({"ignore_eos": True}, FinishReason.LENGTH, None),
            ({"stop_token_ids": (-1,)}, FinishReason.STOP, -1),
            ({"min_tokens": 3}, FinishReason.LENGTH, None),
        ],
    )
    def test_what_ends_it(self, change, reason, why):
        parts, item = Scripted(), request([-3], max_tokens=4)
        item.params = replace(item.params, **change)
        parts.engine.add(item)
        last = finish(parts)[item.id][-1]
        assert (last.finish_reason, last.stop_reason) == (reason, why)

    def test_a_stop_string_ends_it(self):
        parts, item = Scripted(), request([97], max_tokens=9)
        parts.engine.add(item)
        last = finish(parts)[item.id][-1]
        assert (last.finish_reason, last.stop_reason) == (FinishReason.STOP, "99")

    def test_a_deadline_ends_it_running_or_waiting(self):
        clock = Clock()
        parts = Scripted(clock=clock, seqs=1)
        running, waiting = request([20], max_tokens=50), request([30], max_tokens=50)
        for item in (running, waiting):
            item.deadline = 10.0
            parts.engine.add(item)
        parts.engine.step()
        clock.now = 11.0
        ended = parts.engine.step()
        assert {output.delta.finish_reason for output in ended} == {FinishReason.DEADLINE}
        assert not parts.engine.has_work
        assert parts.cache.num_used == 0

    def test_who_waits_longer_than_the_queue_allows_is_sent_away_and_who_was_begun_is_not(self):
        clock = Clock()
        parts = Scripted(clock=clock, seqs=1)
        running, waiting = request([20], max_tokens=3), request([30], max_tokens=3)
        for item in (running, waiting):
            item.queue_deadline = 5.0
            parts.engine.add(item)
        parts.engine.step()
        clock.now = 4.9
        assert [output.request for output in parts.engine.step()] == [running]
        clock.now = 5.0
        ended = {output.request: output.delta.finish_reason for output in parts.engine.step()}
        assert ended == {waiting: FinishReason.QUEUE_DEADLINE, running: FinishReason.LENGTH}

    def test_the_deadline_holds_where_the_queue_would_allow_more(self):
        clock = Clock()
        parts, item = Scripted(clock=clock), request([20], max_tokens=50)
        item.deadline, item.queue_deadline = 3.0, 5.0
        parts.engine.add(item)
        clock.now = 3.0
        assert [output.delta.finish_reason for output in parts.engine.step()] == [FinishReason.DEADLINE]

    @pytest.mark.parametrize("broken", ["sampling", "text"])
    def test_one_bad_request_harms_no_other(self, broken, caplog):
        parts = Scripted()
        good, bad = request([50, 51], max_tokens=4), request([11], max_tokens=9)
        if broken == "sampling":
            parts.runner.broken.add(bad.id)
        for item in (good, bad):
            parts.engine.add(item)
        deltas = finish(parts)
        assert deltas[bad.id][-1].finish_reason is FinishReason.ERROR
        assert "".join(delta.text for delta in deltas[good.id]) == "52 53 54 55 ."
        assert parts.cache.num_used == 0

    def test_a_failed_step_ends_its_requests_and_the_next_goes_on(self, caplog):
        parts, first = Scripted(), request([50], max_tokens=4)

        def fail(batch):
            raise MemoryError("out of memory")

        parts.runner.before = fail
        parts.engine.add(first)
        assert [output.delta.finish_reason for output in parts.engine.step()] == [FinishReason.ERROR]
        parts.runner.before = lambda batch: None
        second = request([60], max_tokens=1)
        parts.engine.add(second)
        assert finish(parts)[second.id][-1].finish_reason is FinishReason.LENGTH

    def test_three_failed_steps_in_a_row_end_the_engine(self, caplog):
        parts = Scripted()

        def fail(batch):
            raise RuntimeError("device lost")

        parts.runner.before = fail
        for _ in range(2):
            parts.engine.add(request([1]))
            parts.engine.step()
        parts.engine.add(request([1]))
        with pytest.raises(EngineDead):
            parts.engine.step()

    def test_a_runner_that_knows_of_no_later_step_ends_the_engine_at_its_first(self):
        parts = Scripted()

        def fail(batch):
            raise EngineDead("rank 1 of 2 was killed")

        parts.runner.before = fail
        parts.engine.add(request([1]))
        with pytest.raises(EngineDead, match="rank 1 of 2"):
            parts.engine.step()

    @pytest.mark.parametrize(
        ("tokens", "max_tokens", "param"), [(0, 1, "prompt"), (300, 1, "prompt"), (100, 200, "max_tokens")]
    )
    def test_what_can_never_fit_is_refused_at_the_door(self, tokens, max_tokens, param):
        with pytest.raises(PromptTooLong) as refused:
            Scripted().engine.check(request(tokens, max_tokens=max_tokens))
        assert refused.value.param == param

    def test_what_just_fits_is_served(self):
        parts, item = Scripted(), request(250, max_tokens=6)
        parts.engine.check(item)
        parts.engine.add(item)
        assert finish(parts)[item.id][-1].finish_reason is FinishReason.LENGTH


@asynccontextmanager
async def started(parts: Scripted) -> AsyncIterator[AsyncEngine]:
    parts.asynchronous.start()
    try:
        yield parts.asynchronous
    finally:
        parts.runner.gate.set()
        await asyncio.to_thread(parts.asynchronous.stop)


async def text(stream: Stream) -> str:
    return "".join([delta.text async for delta in stream])


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


class TestAsyncEngine:
    async def test_streams_come_in_order_and_end(self):
        parts = Scripted()
        async with started(parts) as engine:
            streams = [engine.submit(request([100 * n], max_tokens=3)) for n in (1, 2, 3)]
            assert await asyncio.gather(*map(text, streams)) == [
                "101 102 103 .",
                "201 202 203 .",
                "301 302 303 .",
            ]
            assert (engine.arrivals, engine.completions) == (3, 3)
            assert engine.stats().used_blocks == 0

    async def test_an_arrival_counts_as_waiting_at_once(self):
        parts = Scripted()
        async with started(parts) as engine:
            parts.runner.gate.clear()
            engine.submit(request([100], max_tokens=3))
            engine.submit(request([200], max_tokens=3))
            stats = engine.stats()
            assert sum(stats.waiting.values()) + stats.running == 2

    async def test_the_queue_is_bounded_in_requests_and_in_tokens(self):
        refused: list[RejectReason] = []
        parts = Scripted(on_reject=refused.append)
        async with started(parts) as engine:
            parts.runner.gate.clear()
            engine.submit(request([100], max_tokens=3))
            await until(lambda: engine.beat.phase is not Phase.IDLE)
            with pytest.raises(Overloaded) as tokens:
                engine.submit(request(101))
            for number in range(4):
                engine.submit(request([200 + number]))
            with pytest.raises(Overloaded) as full:
                engine.submit(request([300]))
        assert tokens.value.retry_after >= 1
        assert full.value.reason == RejectReason.QUEUE_FULL
        assert refused == [RejectReason.QUEUE_TOKENS_FULL, RejectReason.QUEUE_FULL]

    async def test_cancelling_frees_blocks_and_leaves_others_alone(self):
        parts = Scripted()
        async with started(parts) as engine:
            one, two = engine.submit(request([100], max_tokens=90)), engine.submit(request([200], max_tokens=90))
            one.cancel()
            assert len((await text(two)).split()) >= 90
            assert engine.stats().used_blocks == 0
            one.cancel()

    async def test_an_internal_failure_is_raised_to_its_reader_only(self, caplog):
        parts = Scripted()
        async with started(parts) as engine:
            bad, good = request([10], max_tokens=9), request([50], max_tokens=2)
            streams = [engine.submit(bad), engine.submit(good)]
            with pytest.raises(RequestFailed, match=bad.id):
                await text(streams[0])
            assert await text(streams[1]) == "51 52 ."

    async def test_a_drain_finishes_what_was_begun_and_sends_the_rest_away(self):
        parts = Scripted(seqs=1)
        async with started(parts) as engine:
            parts.runner.gate.clear()
            begun = engine.submit(request([100], max_tokens=3))
            await until(lambda: engine.beat.phase is not Phase.IDLE)
            queued = engine.submit(request([200], max_tokens=3))
            drained = asyncio.create_task(engine.drain(PATIENCE_SECONDS))
            await asyncio.sleep(0)
            with pytest.raises(Draining):
                engine.submit(request([300]))
            parts.runner.gate.set()
            assert await text(begun) == "101 102 103 ."
            with pytest.raises(Draining):
                await text(queued)
            await drained

    async def test_a_body_that_was_begun_in_part_is_finished_as_a_whole(self):
        parts = Scripted(seqs=1)
        async with started(parts) as engine:
            parts.runner.gate.clear()
            begun, second = engine.submit_all([request([100], max_tokens=3), request([200], max_tokens=3)])
            await until(lambda: engine.beat.phase is not Phase.IDLE)
            drained = asyncio.create_task(engine.drain(PATIENCE_SECONDS))
            await asyncio.sleep(0)
            parts.runner.gate.set()
            assert await text(begun) == "101 102 103 ."
            assert await text(second) == "201 202 203 ."
            await drained

    async def test_a_drain_that_runs_out_interrupts_even_while_a_step_does_not_end(self):
        parts = Scripted()
        async with started(parts) as engine:
            parts.runner.gate.clear()
            long = engine.submit(request([100], max_tokens=120))
            await until(lambda: engine.beat.phase is not Phase.IDLE)
            await engine.drain(0.1)
            with pytest.raises(Interrupted):
                await text(long)
            assert not await asyncio.to_thread(engine.stop, 0.01)
            parts.runner.gate.set()
            assert await asyncio.to_thread(engine.stop, PATIENCE_SECONDS)
            assert engine.stats().used_blocks == 0

    async def test_everyone_is_told_of_a_lost_step_thread_even_while_it_holds_the_lock(self):
        parts = Scripted()
        held, release = threading.Event(), threading.Event()

        def hold(batch):
            with parts.asynchronous._wake:
                held.set()
                release.wait(PATIENCE_SECONDS)

        async with started(parts) as engine:
            parts.runner.before = hold
            stream = engine.submit(request([100]))
            await until(held.is_set)
            engine.give_up(EngineDead("lost"))
            with pytest.raises(EngineDead, match="lost"):
                await text(stream)
            release.set()

    async def test_a_dead_engine_says_so_to_all(self, caplog):
        died = []
        parts = Scripted(on_death=died.append)
        caplog.set_level(logging.CRITICAL)

        def die(batch):
            raise SystemExit

        parts.runner.before = die
        async with started(parts) as engine:
            with pytest.raises(EngineDead):
                await text(engine.submit(request([100])))
            await until(lambda: not engine.alive)
            with pytest.raises(EngineDead):
                engine.submit(request([100]))
            assert engine.died
        assert [type(error) for error in died] == [SystemExit]

    async def test_two_hundred_clients_that_leave_at_any_moment_leave_nothing_behind(self):
        parts = Scripted(max_waiting_requests=1000, max_waiting_prompt_tokens=100_000)
        async with started(parts) as engine:
            streams = [engine.submit(request([100 + n], max_tokens=20)) for n in range(200)]

            async def leave(number: int, stream: Stream) -> None:
                async for _ in stream:
                    if number % 3 == 0:
                        stream.cancel()
                    await asyncio.sleep(0)

            await asyncio.gather(*(leave(*pair) for pair in enumerate(streams)))
            await until(lambda: not (engine.stats().running or sum(engine.stats().waiting.values())))
            assert engine.stats().used_blocks == 0


def test_sampling_params_know_greedy():
    assert SamplingParams(temperature=0).greedy
