"""Connections as objects: kept ones end after a while, so that pooled clients spread over replicas, old and new."""

from __future__ import annotations

import random
import select
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from octavo_engine.server.deadlines import PunctualProtocol

MAX_REQUESTS = 100
MAX_SECONDS = 60.0
JITTER = 0.2  # clients that came together should not leave together


class Connection:
    """The application as one connection sees it: the last reply it carries says `Connection: close`."""

    def __init__(self, app: ASGIApp, protocol: H11Protocol) -> None:
        self._app = app
        self._protocol = protocol
        share = 1 + JITTER * random.uniform(-1, 1)  # noqa: S311 (spreads load, guards nothing)
        self._requests_left = round(MAX_REQUESTS * share)
        self._until = time.monotonic() + MAX_SECONDS * share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        self._requests_left -= 1
        cycle, chunked = self._protocol.cycle, False

        async def send_on(message: Message) -> None:
            nonlocal chunked
            if message["type"] == "http.response.start":
                if self._is_last:
                    message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
                chunked = is_chunked(scope, message)
            elif chunked and message.get("more_body"):
                await send_chunk(cycle, message["body"])
                return
            await send(message)

        await self._app(scope, receive, send_on)

    @property
    def _is_last(self) -> bool:
        return self._requests_left <= 0 or time.monotonic() > self._until


def is_chunked(scope: Scope, start: Message) -> bool:
    """Whether h11 sends the body of the response that begins with `start` in chunks, each with its length."""
    if scope["http_version"] != "1.1" or scope["method"] == "HEAD" or start["status"] in (204, 304):
        return False
    return all(name.lower() not in (b"content-length", b"transfer-encoding") for name, _ in start.get("headers", ()))


async def send_chunk(cycle: RequestResponseCycle, body: bytes) -> None:
    """What `cycle.send` does with a part of a chunked body, without h11's account of it.

    For a token's few bytes that account took most of the time of sending them. The end still goes through h11.
    """
    if cycle.flow.write_paused and not cycle.disconnected:
        await cycle.flow.drain()
    if body and not cycle.disconnected:
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))


class RecyclingProtocol(PunctualProtocol):
    """uvicorn's h11 protocol with the application wrapped once for each connection.

    h11 rather than httptools: it bounds the size of the request head and refuses ambiguous framing.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = Connection(self.app, self)

    def retire(self) -> None:
        """End the connection where no request can be lost: now if it is idle, else after the present reply.

        A new one stays, and so does one on which a request is arriving: they get an answer that says where to go.
        """
        if self.cycle is None or self._is_arriving():
            return
        if self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    def _is_arriving(self) -> bool:
        """True when part of a request is here: read already, or still in the socket's buffer."""
        if self.conn.trailing_data[0]:
            return True
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), select.POLLIN)
        return bool(poll.poll(0))
