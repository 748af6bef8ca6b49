"""Server-sent events: a response whose headers wait for the first event.

A client that does not read is the connection's matter: it stops whoever writes, and gives the client up (`deadlines`).
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")


def event(value: dict[str, Any]) -> bytes:
    """One event."""
    return b"data: " + one_line(_JSON.encode(value)).encode() + b"\n\n"


def one_line(text: str) -> str:
    """The same JSON, and nobody takes it for several lines.

    Three characters stand in JSON as they are, are no ends of lines to the standard of events, and are to whoever reads
    text by lines: Python's `splitlines`, and with it `iter_lines` of httpx and requests, with which many clients read.
    """
    return text if text.isascii() else _LINE_ENDS.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


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
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for piece in self._rest:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._rest.aclose()
