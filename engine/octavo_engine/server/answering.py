"""One body's requests on their way through the engine, and their answer: all at once, or as it grows."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from fastapi.responses import JSONResponse, Response
from starlette.types import Receive

from octavo_engine.async_engine import AsyncEngine
from octavo_engine.errors import OctavoError
from octavo_engine.output import Delta
from octavo_engine.request import Request
from octavo_engine.server.answers import Json, Writer, merge, usage
from octavo_engine.server.chunks import Chunks
from octavo_engine.server.event_stream import DONE, EventStream, event
from octavo_engine.server.generation import generate
from octavo_engine.server.replies import Refusal, refusal_of


class Answering:
    """Used once, by `plain` or by `stream`."""

    def __init__(
        self,
        engine: AsyncEngine,
        requests: Sequence[Request],
        writer: Writer,
        choices_per_prompt: int,
        receive: Receive,
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._writer = writer
        self._choices_per_prompt = choices_per_prompt
        self._receive = receive

    async def plain(self) -> Response:
        """Wait for all choices and send them together."""
        parts: list[list[Delta]] = [[] for _ in self._requests]
        async with aclosing(generate(self._engine, self._requests, self._receive, whole=True)) as arrivals:
            async for deltas in arrivals:
                for index, delta in deltas:
                    parts[index].append(delta)
        return JSONResponse(self._writer.answer([merge(part) for part in parts], self._usage()))

    async def stream(self, *, include_usage: bool) -> Response:
        """Send choices as they grow. An error before the first delta is an ordinary error reply, raised here."""
        events = self._events(include_usage)
        return EventStream(await anext(events), events)

    async def _events(self, include_usage: bool) -> AsyncGenerator[bytes, None]:
        # A client that asked for the usage finds the field in every chunk, empty until the last.
        chunks = Chunks(self._writer, {"usage": None} if include_usage else {})
        opening = chunks.opening(len(self._requests))
        opened = False
        try:
            async with aclosing(generate(self._engine, self._requests, self._receive)) as arrivals:
                async for deltas in arrivals:
                    pieces = chunks.pieces(deltas)
                    if pieces or not opened:  # without a piece yet, the headers and the opening alone
                        yield pieces if opened else opening + pieces
                        opened = True
            if include_usage:
                yield event(self._writer.last(self._usage()))
            yield DONE
        except (Refusal, OctavoError) as error:
            if not opened:
                raise
            yield event((error if isinstance(error, Refusal) else refusal_of(error)).body)

    def _usage(self) -> Json:
        return usage(self._requests, self._choices_per_prompt)
