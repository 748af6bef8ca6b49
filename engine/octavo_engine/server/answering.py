"""One body's requests on their way through the engine, and their answer: all at once, or as it grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive

from octavo_engine.async_engine import AsyncEngine
from octavo_engine.errors import OctavoError
from octavo_engine.output import Delta
from octavo_engine.request import Request
from octavo_engine.server.answers import Json, best, merge, usage
from octavo_engine.server.event_stream import EventStream, event
from octavo_engine.server.generation import generate
from octavo_engine.server.replies import Refusal, refusal_of

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

    `requests` are `copies` for each prompt, of which the `kept` best are answered with.
    """

    def __init__(
        self, engine: AsyncEngine, requests: Sequence[Request], receive: Receive, *, copies: int = 1, kept: int = 1
    ) -> None:
        self._engine = engine
        self.requests = requests
        self._receive = receive
        self._copies, self._kept = copies, kept

    async def plain(self, write: Write) -> Response:
        """Wait for all choices and send what `write` makes of them and of the token counts."""
        parts: list[list[Delta]] = [[] for _ in self.requests]
        async with aclosing(generate(self._engine, self.requests, self._receive, whole=True)) as arrivals:
            async for deltas in arrivals:
                for index, delta in deltas:
                    parts[index].append(delta)
        choices = best([merge(part) for part in parts], self._copies, self._kept)
        if any(request.reading is not None for request in self.requests):  # there may be thousands of numbers to write
            return await asyncio.to_thread(lambda: JSONResponse(write(choices, self._usage())))
        return JSONResponse(write(choices, self._usage()))

    async def stream(self, events: Events) -> Response:
        """Send choices as they grow. An error before the first delta is an ordinary error reply, raised here."""
        written = self._written(events)
        return EventStream(await anext(written), written)

    async def _written(self, events: Events) -> AsyncGenerator[bytes, None]:
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
        except (Refusal, OctavoError) as error:
            if not opened:
                raise
            yield event((error if isinstance(error, Refusal) else refusal_of(error)).body)

    def _usage(self) -> Json:
        return usage(self.requests, self._copies)
