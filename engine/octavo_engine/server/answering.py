"""One body's requests on their way through the engine, and their answer: all at once, or as it grows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive

from octavo_engine.async_engine import AsyncEngine
from octavo_engine.errors import OctavoError
from octavo_engine.output import Delta, merge
from octavo_engine.request import Request
from octavo_engine.server.answers import Json, best, usage
from octavo_engine.server.event_stream import EventStream, event
from octavo_engine.server.generation import generate
from octavo_engine.server.replies import Refusal, fault, refusal_of

log = logging.getLogger(__name__)

Write = Callable[[Sequence[Delta], Json], Json]  # from choices and token counts to a plain answer


class Events(Protocol):
    """How one route writes a stream."""

    def opening(self, choices: int) -> bytes:
        """What comes before any text of so many choices."""

    def pieces(self, deltas: list[tuple[int, Delta]]) -> bytes:
        """What the deltas, each with its choice's index, add; nothing if they say nothing."""

    def closing(self, counts: Json) -> bytes:
        """What comes when all choices have ended."""


class Answering:
    """Used once, by `plain` or by `stream`.

    `requests` are `copies` for each prompt, of which the `kept` best are answered with. Of a plain answer's no more
    than `at_once` are in the engine at a time.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        requests: Sequence[Request],
        receive: Receive,
        *,
        copies: int = 1,
        kept: int = 1,
        at_once: int | None = None,
    ) -> None:
        self._engine = engine
        self.requests = requests
        self._receive = receive
        self.copies, self._kept, self._at_once = copies, kept, at_once

    async def plain(self, write: Write) -> Response:
        """Wait for all choices and send what `write` makes of them and of the token counts."""
        parts: list[list[Delta]] = [[] for _ in self.requests]
        every = generate(self._engine, self.requests, self._receive, whole=True, at_once=self._at_once)
        async with aclosing(every) as arrivals:
            async for deltas in arrivals:
                for index, delta in deltas:
                    parts[index].append(delta)
        choices = best([merge(part) for part in parts], self.copies, self._kept)
        if any(request.reading is not None for request in self.requests):  # there may be thousands of numbers to write
            return await asyncio.to_thread(lambda: JSONResponse(write(choices, self._usage())))
        return JSONResponse(write(choices, self._usage()))

    async def stream(self, events: Events, on_error: Callable[[str], None] = lambda _: None) -> Response:
        """Send choices as they grow. An error before the first delta is an ordinary error reply, raised here.

        A later one is the stream's last event, and `on_error` is told its code.
        """
        written = self._written(events, on_error)
        return EventStream(await anext(written), written)

    async def _written(self, events: Events, on_error: Callable[[str], None]) -> AsyncGenerator[bytes, None]:
        opening = events.opening(len(self.requests))
        opened = False
        try:
            async with aclosing(generate(self._engine, self.requests, self._receive)) as arrivals:
                async for deltas in arrivals:
                    pieces = events.pieces(deltas)
                    if pieces or not opened:  # without a piece yet, the headers and the opening alone
                        yield pieces if opened else opening + pieces
                        opened = True
            yield events.closing(self._usage())
        except Exception as error:
            if not opened:
                raise
            refusal = self._last_words(error)
            on_error(refusal.why)
            yield event(refusal.body)

    def _last_words(self, error: Exception) -> Refusal:
        """What a stream ends with that cannot go on."""
        if isinstance(error, Refusal):
            return error
        if isinstance(error, OctavoError):
            return refusal_of(error)
        name = self.requests[0].x_request_id
        log.error("request %s failed while its answer was written", name, exc_info=error)
        return fault(name)

    def _usage(self) -> Json:
        return usage(self.requests, self.copies)
