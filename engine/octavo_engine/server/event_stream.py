"""Server-sent events: a response whose headers wait for the first event, and that gives up on readers who stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

WRITE_SECONDS = 30.0  # how long a client may leave the socket's buffers full, at least
LOOKS = 3  # in that time: a client is given up at most one look later

DONE = b"data: [DONE]\n\n"
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def event(value: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + _JSON.encode(value).encode() + b"\n\n"


class EventStream(Response):
    """Sends `first` and then what `rest` yields; `rest` is closed in any case."""

    media_type = "text/event-stream"

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 (ASGI's signature)
        """Send it all."""
        try:
            async with asyncio.timeout(None) as limit:
                patience = Patience(limit)
                try:
                    await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                    await patience.write(send, self._first)
                    async for piece in self._rest:
                        await patience.write(send, piece)
                    await patience.write(send, b"", more=False)
                finally:
                    patience.end()
        except TimeoutError:
            return  # an unfinished response: the connection is closed
        finally:
            await self._rest.aclose()


class Patience:
    """Ends `limit` when one write has lasted for `WRITE_SECONDS`.

    It looks now and then whether the same write is still under way: a timer for each of a stream's writes would cost
    more than the writes.
    """

    def __init__(self, limit: asyncio.Timeout) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._writes = self._seen = self._looks = 0
        self._writing = False
        self._next = self._loop.call_later(WRITE_SECONDS / LOOKS, self._look)

    async def write(self, send: Send, piece: bytes, *, more: bool = True) -> None:
        """Send a part of the body."""
        self._writes += 1
        self._writing = True
        await send({"type": "http.response.body", "body": piece, "more_body": more})
        self._writing = False

    def end(self) -> None:
        """Look no more."""
        self._next.cancel()

    def _look(self) -> None:
        same = self._writing and self._seen == self._writes
        self._looks = self._looks + 1 if same else 0
        self._seen = self._writes
        if self._looks >= LOOKS:
            self._limit.reschedule(self._loop.time())
        else:
            self._next = self._loop.call_later(WRITE_SECONDS / LOOKS, self._look)
