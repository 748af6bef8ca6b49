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
        self._requests = requests
        self._writer = writer
        self._choices_per_prompt = choices_per_prompt
        self._deltas = generate(engine, requests, receive)
        self._common: Json = {}

    async def plain(self) -> Response:
        """Wait for all choices and send them together."""
        parts: list[list[Delta]] = [[] for _ in self._requests]
        async with aclosing(self._deltas) as deltas:
            async for index, delta in deltas:
                parts[index].append(delta)
        return JSONResponse(self._writer.answer([merge(part) for part in parts], self._usage()))

    async def stream(self, *, include_usage: bool) -> Response:
        """Send choices as they grow. An error before the first delta is an ordinary error reply, raised here."""
        # A client that asked for the usage finds the field in every chunk, empty until the last.
        self._common = {"usage": None} if include_usage else {}
        events = self._events(include_usage)
        return EventStream(await anext(events), events)

    async def _events(self, include_usage: bool) -> AsyncGenerator[bytes, None]:
        opened = False
        try:
            async with aclosing(self._deltas) as deltas:
                async for index, delta in deltas:
                    if not opened:
                        opened = True
                        yield b"".join(self._openings())
                    if delta.text or delta.tokens or delta.finish_reason is not None:
                        yield event(self._chunk(self._writer.form.piece(index, delta)))
            if include_usage:
                yield event(self._writer.last(self._usage()))
            yield DONE
        except (Refusal, OctavoError) as error:
            if not opened:
                raise
            yield event((error if isinstance(error, Refusal) else refusal_of(error)).body)

    def _openings(self) -> list[bytes]:
        """What each choice begins with; nothing where the form has no beginning, and then only the headers are sent."""
        openings = (self._writer.form.opening(index) for index in range(len(self._requests)))
        return [event(self._chunk(opening)) for opening in openings if opening is not None]

    def _chunk(self, choice: Json) -> Json:
        return self._writer.chunk(choice) | self._common

    def _usage(self) -> Json:
        return usage(self._requests, self._choices_per_prompt)
