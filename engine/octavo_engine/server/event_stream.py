"""Server-sent events: a response whose headers wait for the first event, and that gives up on readers who stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

WRITE_SECONDS = 30.0  # how long a client may leave the socket's buffers full

DONE = b"data: [DONE]\n\n"


def event(value: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


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
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await _send(send, self._first)
            async for piece in self._rest:
                await _send(send, piece)
            await _send(send, b"", more=False)
        except TimeoutError:
            return  # an unfinished response: the connection is closed
        finally:
            await self._rest.aclose()


async def _send(send: Send, piece: bytes, *, more: bool = True) -> None:
    async with asyncio.timeout(WRITE_SECONDS):
        await send({"type": "http.response.body", "body": piece, "more_body": more})
