"""Connections as objects: kept ones end after a while, so that pooled clients spread over replicas, old and new."""

from __future__ import annotations

import random
import select
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_REQUESTS = 100
MAX_SECONDS = 60.0
JITTER = 0.2  # clients that came together should not leave together


class Connection:
    """The application as one connection sees it: the last reply it carries says `Connection: close`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        share = 1 + JITTER * random.uniform(-1, 1)  # noqa: S311 (spreads load, guards nothing)
        self._requests_left = round(MAX_REQUESTS * share)
        self._until = time.monotonic() + MAX_SECONDS * share

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        self._requests_left -= 1

        async def send_and_perhaps_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self._is_last:
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, send_and_perhaps_close)

    @property
    def _is_last(self) -> bool:
        return self._requests_left <= 0 or time.monotonic() > self._until


class RecyclingProtocol(H11Protocol):
    """uvicorn's h11 protocol with the application wrapped once for each connection.

    h11 rather than httptools: it bounds the size of the request head and refuses ambiguous framing.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = Connection(self.app)

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
