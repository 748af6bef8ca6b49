"""The work queue: keys are merged, never run twice at once, and fail alone."""

import asyncio

import pytest

from moved_clock import MovedClock
from octavo_operator import work_queue
from octavo_operator.work_queue import LONGEST_DELAY, WorkQueue
from patience import PATIENCE_SECONDS


async def drained(queue, work, *, workers=2, until):
    tasks = [asyncio.create_task(queue.run_worker(work)) for _ in range(workers)]
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await until.wait()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_burst_of_events_is_one_run():
    queue, runs, done = WorkQueue(), [], asyncio.Event()

    async def work(key):
        runs.append(key)
        if len(runs) == 2:
            done.set()

    for _ in range(100):
        queue.add("a")
    queue.add("b")
    assert len(queue) == 2
    await drained(queue, work, until=done)
    assert sorted(runs) == ["a", "b"]


async def test_an_event_during_a_run_causes_one_more():
    queue, runs, done = WorkQueue(), [], asyncio.Event()
    running = 0

    async def work(key):
        nonlocal running
        running += 1
        assert running == 1, "one key must never run twice at once"
        runs.append(key)
        if len(runs) == 1:
            queue.add(key)
            queue.add(key)
            await asyncio.sleep(0.01)
        running -= 1
        if len(runs) == 2:
            done.set()

    queue.add("a")
    await drained(queue, work, until=done)
    assert runs == ["a", "a"]


async def test_delays_grow_and_are_bounded(monkeypatch):
    monkeypatch.setattr(work_queue.random, "uniform", lambda low, high: 1.0)
    queue = WorkQueue()
    delays = [queue.failed("a") for _ in range(40)]
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(delays) == LONGEST_DELAY
    assert queue.failed("a", at_least=1000.0) == 1000.0
    queue.succeeded("a")
    assert queue.failed("a") == 0.5


async def test_a_poisoned_key_does_not_delay_others(monkeypatch):
    monkeypatch.setattr(work_queue, "FIRST_DELAY", 0.01)
    queue, seen, done = WorkQueue(), [], asyncio.Event()

    async def work(key):
        seen.append(key)
        if key == "poisoned":
            queue.failed(key)
            return
        if seen.count("poisoned") >= 3:
            done.set()
        else:
            queue.add_later(key, 0.005)

    queue.add("poisoned")
    queue.add("fine")
    await drained(queue, work, workers=1, until=done)
    assert seen.count("fine") >= 2


@pytest.mark.parametrize("delay", [100.0])
async def test_an_event_brings_a_retry_forward(delay):
    queue, done = WorkQueue(), asyncio.Event()
    queue.failed("a", at_least=delay)

    async def work(key):
        done.set()

    queue.add("a")
    await drained(queue, work, until=done)


async def test_the_wait_for_a_worker_is_told(monkeypatch):
    waits, done, clock = [], asyncio.Event(), MovedClock(monkeypatch)
    queue = WorkQueue(waits.append)

    async def work(key):
        if key == "slow":
            clock.move_on(1000.0)
        else:
            done.set()

    queue.add("slow")
    queue.add("waits")
    await drained(queue, work, workers=1, until=done)
    assert waits[0] < 1000.0 <= waits[1]


async def test_events_of_its_own_writes_are_one_more_run_after_a_rest(monkeypatch):
    monkeypatch.setattr(work_queue, "REST_SECONDS", 0.05)
    loop, queue, runs, done = asyncio.get_running_loop(), WorkQueue(), [], asyncio.Event()

    async def work(key):
        runs.append((key, loop.time()))
        if len(runs) == 1:
            for delay in (0.0, 0.01, 0.02, 0.03):
                loop.call_later(delay, queue.add, key)
            loop.call_later(0.01, queue.add, "other")
        if [name for name, _ in runs].count("a") == 2:
            done.set()

    queue.add("a")
    await drained(queue, work, until=done)
    assert [name for name, _ in runs] == ["a", "other", "a"], "a rest is its own matter"
    assert runs[2][1] - runs[0][1] >= 0.05


async def test_what_a_person_waits_for_goes_before_echoes_and_is_done_once():
    queue, runs, done = WorkQueue(), [], asyncio.Event()

    async def work(key):
        runs.append(key)
        if len(runs) == 4:
            done.set()

    for key in ("echo", "edited", "another echo"):
        queue.add(key)
    queue.add("new", urgent=True)
    queue.add("edited", urgent=True)
    queue.add("edited", urgent=True)
    assert len(queue) == 4
    await drained(queue, work, workers=1, until=done)
    assert runs == ["new", "edited", "echo", "another echo"]
    assert queue._ready.empty()


async def test_what_waits_for_long_is_not_overtaken_any_more(monkeypatch):
    monkeypatch.setattr(work_queue, "HEAD_START_SECONDS", 0.01)
    queue, runs, done = WorkQueue(), [], asyncio.Event()

    async def work(key):
        runs.append(key)
        if len(runs) == 2:
            done.set()

    queue.add("patient")
    await asyncio.sleep(0.02)
    queue.add("urgent", urgent=True)
    await drained(queue, work, workers=1, until=done)
    assert runs == ["patient", "urgent"]


async def test_an_urgent_key_stays_so_during_its_rest(monkeypatch):
    monkeypatch.setattr(work_queue, "REST_SECONDS", 0.0)
    queue, runs, done = WorkQueue(), [], asyncio.Event()

    async def work(key):
        runs.append(key)
        if len(runs) == 1:
            queue.add("a", urgent=True)
            queue.add("a")
            queue.add("waits")
            await asyncio.sleep(0)
        if len(runs) == 2:
            await asyncio.sleep(0.01)  # so long that the rest of the first is over
        if len(runs) == 4:
            done.set()

    queue.add("a")
    queue.add("between")
    await drained(queue, work, workers=1, until=done)
    assert runs == ["a", "between", "a", "waits"]


async def test_a_storm_is_many_others_a_moment_ago(monkeypatch):
    queue, clock = WorkQueue(), MovedClock(monkeypatch)
    monkeypatch.setattr(work_queue, "STORM_SECONDS", PATIENCE_SECONDS)
    for number in range(work_queue.STORM):
        assert not queue.crowded("a")
        queue.add("a", urgent=True)
        queue.add(f"other-{number}", urgent=True)
        queue.add("echo")
    assert queue.crowded("a")
    queue.add("b", urgent=True)
    assert len(queue._urgent) == work_queue.STORM + 1, "no more is remembered than tells a storm"
    assert queue.crowded("a")
    clock.move_on(PATIENCE_SECONDS)
    assert not queue.crowded("a")
