"""Sends conversations when they are due, until enough were sent, the time is over, or somebody stops it.

Knows neither HTTP nor statistics: a `Client` sends and records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from octavo_engine.bench.arrivals import Arrivals, ClosedLoop
from octavo_engine.bench.client import Client, Json
from octavo_engine.bench.conversations import Dialogue, Endpoint, Turn

BREATH_SECONDS = 0.1  # after a failure: a server that refuses at once would be asked thousands of times a second


@dataclass(frozen=True, slots=True)
class Bound:
    """What ends a measurement: so many requests, or seconds; what was sent before is read to its end."""

    requests: int | None
    seconds: float | None


@dataclass(slots=True, kw_only=True)
class Driver:
    """One measurement. `offsets` are the times of an open loop's arrivals, in seconds."""

    client: Client
    conversations: Iterator[list[Turn]]
    endpoint: Endpoint
    common: Json  # fields of each request
    bound: Bound
    pause: float = 0.0  # seconds between an answer and the next turn
    sent: int = 0
    in_flight: int = 0

    async def run(self, arrivals: Arrivals, offsets: Iterator[float], stop: asyncio.Event) -> None:
        """Until the end, or until `stop` is set: then what is under way is given up."""
        self.client.began = time.monotonic()
        work = asyncio.create_task(self._closed(arrivals) if isinstance(arrivals, ClosedLoop) else self._open(offsets))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            work.cancel()
            stopped.cancel()
            await asyncio.gather(work, stopped, return_exceptions=True)
        if not work.cancelled():
            work.result()

    async def _closed(self, loop: ClosedLoop) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(loop.concurrency):
                group.create_task(self._one_after_another())

    async def _one_after_another(self) -> None:
        while self._more():
            turns = next(self.conversations, None)
            if turns is None:
                return
            if not await self._converse(turns, None):
                await asyncio.sleep(BREATH_SECONDS)

    async def _open(self, offsets: Iterator[float]) -> None:
        async with asyncio.TaskGroup() as group:
            for due in offsets:
                if self.bound.seconds is not None and due >= self.bound.seconds:
                    return
                turns = next(self.conversations, None)  # made while there is time, not when it is due
                if turns is None:
                    return
                await asyncio.sleep(max(0.0, self.client.began + due - time.monotonic()))
                if not self._more():
                    return
                self.sent += 1  # it is, as soon as the loop comes to it: the next one must know
                group.create_task(self._converse(turns, due))

    async def _converse(self, turns: list[Turn], due: float | None) -> bool:
        """All turns of a conversation, as long as they are answered and more may be sent; whether all were."""
        dialogue = Dialogue(turns)
        for question in dialogue.questions(self.endpoint, self.common):
            if question.turn:
                await asyncio.sleep(self.pause)
            if question.turn or due is None:
                if not self._more():
                    return True
                self.sent += 1
            self.in_flight += 1
            try:
                answer = await self.client.ask(question, None if question.turn else due)
            finally:
                self.in_flight -= 1
            if answer is None:
                return False
            dialogue.heard(answer.text)
        return True

    def _more(self) -> bool:
        requests, seconds = self.bound.requests, self.bound.seconds
        if requests is not None and self.sent >= requests:
            return False
        return seconds is None or time.monotonic() - self.client.began < seconds
