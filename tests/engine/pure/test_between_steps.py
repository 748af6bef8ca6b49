"""An errand of the step thread: done between two steps, and at once while there is no work; requests go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from octavo_engine.async_engine import AsyncEngine, Stream
from patience import PATIENCE_SECONDS
from scheduling_helpers import request
from scripted_engine import Scripted


@asynccontextmanager
async def started(parts: Scripted) -> AsyncIterator[AsyncEngine]:
    parts.asynchronous.start()
    try:
        yield parts.asynchronous
    finally:
        await asyncio.to_thread(parts.asynchronous.stop)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def text(stream: Stream) -> str:
    return "".join([delta.text async for delta in stream])


class Errand:
    """Has so many parts to do; notes whether there was no work, by which thread, after how many batches."""

    def __init__(self, parts: Scripted, count: int, *, only_idle: bool = False) -> None:
        self._parts, self._left, self._only_idle = parts, count, only_idle
        self.calls: list[tuple[bool, int]] = []
        self.threads: set[str] = set()

    def __call__(self, idle: bool) -> bool:
        self.calls.append((idle, len(self._parts.runner.batches)))
        self.threads.add(threading.current_thread().name)
        self._left -= idle or not self._only_idle
        return self._left > 0


async def test_while_there_is_no_work_an_errand_is_done_at_once_and_to_its_end() -> None:
    parts = Scripted()
    errand = Errand(parts, 3)
    async with started(parts) as engine:
        engine.do_between_steps(errand)
        await until(lambda: len(errand.calls) == 3)
        assert await text(engine.submit(request([100], max_tokens=2))) == "101 102 ."
    assert errand.calls == [(True, 0)] * 3
    assert errand.threads == {"octavo-step"}


async def test_while_requests_run_there_is_a_step_before_each_part() -> None:
    parts = Scripted()
    errand = Errand(parts, 2, only_idle=True)
    async with started(parts) as engine:
        parts.runner.gate.clear()
        stream = engine.submit(request([100], max_tokens=4))
        engine.do_between_steps(errand)
        parts.runner.gate.set()
        assert await text(stream) == "101 102 103 104 ."
        await until(lambda: len(errand.calls) >= 5)
    busy = [batches for idle, batches in errand.calls if not idle]
    assert busy == [1, 2, 3]
    assert [idle for idle, _ in errand.calls] == [False] * 3 + [True] * 2


async def test_an_errand_that_fails_is_the_step_threads_end() -> None:
    died: list[BaseException] = []
    parts = Scripted(on_death=died.append)

    def fail(idle: bool) -> bool:
        raise RuntimeError("broken")

    async with started(parts) as engine:
        engine.do_between_steps(fail)
        await until(lambda: engine.died)
    assert [str(error) for error in died] == ["broken"]
