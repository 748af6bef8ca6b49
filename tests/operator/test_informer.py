"""The informer's lives: each in a thread and loop of its own, begun again however it ends."""

import asyncio
import threading

import pytest

from octavo_operator import informer
from octavo_operator.informer import Informer
from patience import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(informer, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(informer, "LONGEST_PAUSE", 0.02)


async def lived(watch, until, begun=lambda: None, act=lambda made: None):
    """Runs an informer until `until` is set by the watcher's thread; returns it, cancelled."""
    made = Informer(watch, begun)
    made._pause = informer.FIRST_PAUSE
    running = asyncio.create_task(made.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not until.is_set():
                act(made)
                await asyncio.sleep(0.01)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_it_runs_elsewhere_and_can_do_no_harm_here(caplog):
    done, loops, begun = threading.Event(), set(), []

    async def watch(stop):
        loops.add(asyncio.get_running_loop())
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # as kopf does when it ends
        if len(loops) == 3:
            done.set()
        raise ValueError("broken")

    await lived(watch, done, lambda: begun.append(True))
    assert asyncio.get_running_loop() not in loops
    assert len(begun) >= 3
    assert "ValueError: broken" in caplog.text


async def test_it_ends_when_asked_to_and_begins_again():
    lives, twice = [], threading.Event()

    async def watch(stop):
        lives.append(stop)
        if len(lives) == 2:
            twice.set()
        await stop.wait()

    asked = iter([True])  # once: the second life is not asked to end

    await lived(watch, twice, act=lambda made: made.restart() if lives and next(asked, False) else None)
    assert len(lives) == 2


async def test_a_life_that_does_not_end_is_left_to_itself(monkeypatch, caplog):
    monkeypatch.setattr(informer, "_END_SECONDS", 0.02)
    lives, twice, release = [], threading.Event(), threading.Event()

    async def watch(stop):
        lives.append(stop)
        if len(lives) == 2:
            twice.set()
            return
        await asyncio.to_thread(release.wait, PATIENCE_SECONDS)  # deaf to being asked

    await lived(watch, twice, act=lambda made: made.restart() if len(lives) == 1 else None)
    release.set()
    assert "did not end when it was asked to" in caplog.text


async def test_cancelling_asks_the_watcher_to_end():
    started, ended = threading.Event(), threading.Event()

    async def watch(stop):
        started.set()
        await stop.wait()
        ended.set()

    await lived(watch, started)
    assert await asyncio.to_thread(ended.wait, PATIENCE_SECONDS)


async def test_pauses_grow_after_failures_and_not_after_a_wish(caplog, monkeypatch):
    lives = []

    async def watch(stop):
        lives.append(stop)
        if len(lives) != 2:
            raise ValueError("broken")

    pauses, sleep = [], asyncio.sleep

    async def pause(seconds):
        pauses.append(seconds)
        await sleep(seconds)

    made = Informer(watch, lambda: None)
    made._pause = informer.FIRST_PAUSE
    running = asyncio.create_task(made.run())
    monkeypatch.setattr(informer.asyncio, "sleep", pause)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(pauses) < 4:
            await sleep(0.002)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    first, longest = informer.FIRST_PAUSE, informer.LONGEST_PAUSE
    assert pauses[:4] == [first, first, longest, longest]
    assert "begins again in 0 s: it was asked to" in caplog.text
