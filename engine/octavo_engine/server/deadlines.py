"""How long a client may keep a connection without getting on: deadlines of heads, bodies and of what it should read.

They are the connection's own, so they hold whatever the application does: for a request that is refused before its body
is read, for a reply that is written but never taken, for a connection that never says anything.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from octavo_engine.config import ServerConfig
from octavo_engine.server.framing import MAX_HEAD_BYTES, FrugalConnection
from octavo_engine.server.replies import Refusal

log = logging.getLogger(__name__)

LEAST_READ_BYTES = 16 * 1024  # in the time of one deadline: a byte now and then is not reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds."""

    head: float = ServerConfig.header_timeout_seconds  # from a connection, or a head's first byte, to the head's end
    body: float = ServerConfig.body_timeout_seconds  # from a head to the end of its body
    write: float = ServerConfig.write_timeout_seconds  # in which some of what waits to be read has to be read


DEFAULTS = Deadlines()


class Alarm:
    """A timer that is set once at most."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_set(self) -> bool:
        """True until it rings or is stopped."""
        return self._timer is not None

    def set(self, seconds: float, ring: Callable[[], None]) -> None:
        """Call `ring` in so many seconds, and not what it was set to before."""
        self.stop()
        self._timer = self._loop.call_later(seconds, self._ring, ring)

    def stop(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self, ring: Callable[[], None]) -> None:
        self._timer = None
        ring()


class Awaited(StrEnum):
    """What a client has yet to send."""

    HEAD = "head"
    BODY = "body"


class PunctualProtocol(H11Protocol):
    """uvicorn's h11 protocol, with deadlines, and with errors in OpenAI's form for what is not HTTP.

    A kept connection between two requests has uvicorn's own timer.
    """

    def __init__(self, *args: Any, deadlines: Deadlines, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = FrugalConnection(h11.SERVER, MAX_HEAD_BYTES)
        self._deadlines = deadlines
        self._awaited: tuple[Awaited | None, object] = (None, None)  # and the cycle that was the last one then
        self._arrival, self._leaving = Alarm(self.loop), Alarm(self.loop)
        self._unread = 0  # bytes, when `_leaving` was set

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there, and should say what it wants."""
        super().connection_made(transport)
        self._watch_arrival()

    def data_received(self, data: bytes) -> None:
        """Something has come. Under TLS it may even after we have closed."""
        if not self.transport.is_closing():
            super().data_received(data)
            self._watch_arrival()

    def on_response_complete(self) -> None:
        """A reply is written, which does not mean that it was read."""
        super().on_response_complete()
        self._watch_arrival()
        self._watch_leaving()

    def timeout_keep_alive_handler(self) -> None:
        """No further request has come: close."""
        super().timeout_keep_alive_handler()
        self._watch_leaving()

    def shutdown(self) -> None:
        """The server stops. Of an idle connection nothing is left to say but goodbye, and under TLS the client's own is
        not waited for."""
        if not self.transport.is_closing():
            super().shutdown()
        if self.transport.is_closing() and not self._waiting_bytes():
            self.transport.abort()

    def pause_writing(self) -> None:
        """The buffer is full: whoever writes waits from now on."""
        super().pause_writing()
        self._watch_leaving()

    def resume_writing(self) -> None:
        """The client has read on."""
        super().resume_writing()
        self._leaving.stop()
        self._watch_leaving()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody is there to wait for."""
        self._arrival.stop()
        self._leaving.stop()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 (uvicorn's signature)
        """What has come is not HTTP; called while h11's complaint is handled."""
        complaint = sys.exception()
        if isinstance(complaint, h11.RemoteProtocolError) and complaint.error_status_hint == 431:
            self.refuse(Refusal(431, "the head of the request is too long", code="head_too_long"))
        else:
            self.refuse(Refusal(400, "this is not a valid HTTP request", code="invalid_http"))

    def refuse(self, refusal: Refusal) -> None:
        """Answer what never became a request, and close."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # in the middle of a reply there is no other way to say it
            return
        reply, phrase = refusal.response(), HTTPStatus(refusal.status).phrase.encode()
        headers = [*reply.raw_headers, (b"x-request-id", uuid.uuid4().hex.encode()), (b"connection", b"close")]
        said = h11.Response(status_code=refusal.status, headers=headers, reason=phrase)
        for event in (said, h11.Data(data=bytes(reply.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._watch_arrival()
        self._watch_leaving()

    # -- what should come ----------------------------------------------------------------------------------------------

    def _watch_arrival(self) -> None:
        """Give what is awaited now its time; what was awaited before, and still is, has its timer already."""
        awaited = self._awaits()
        if awaited is self._awaited[0] and (awaited is None or self.cycle is self._awaited[1]):
            return
        self._awaited = (awaited, self.cycle)
        if awaited is Awaited.HEAD:
            self._arrival.set(self._deadlines.head, self._head_is_late)
        elif awaited is Awaited.BODY:
            self._arrival.set(self._deadlines.body, self._body_is_late)
        else:
            self._arrival.stop()

    def _awaits(self) -> Awaited | None:
        if self.transport.is_closing():
            return None
        if self.conn.their_state is h11.SEND_BODY:
            return Awaited.BODY
        is_new = self.cycle is None
        if self.conn.their_state is h11.IDLE and (is_new or self.conn.trailing_data[0]):
            return Awaited.HEAD
        return None

    def _head_is_late(self) -> None:
        """Whoever has said nothing is told nothing: it may be a connection that was opened in advance."""
        if self.conn.trailing_data[0]:
            self.refuse(Refusal(408, "the head of the request did not arrive in time", code="request_timeout"))
        else:
            self.transport.close()

    def _body_is_late(self) -> None:
        """Close, if the reply was given without reading it; whoever still reads it has the same deadline."""
        if self.cycle.response_complete:
            self.transport.close()
            self._watch_leaving()

    # -- what should be read -------------------------------------------------------------------------------------------

    def _watch_leaving(self) -> None:
        """Time what waits for the client to read: a full buffer, or the last bytes before the end."""
        lingers = self.transport.is_closing() and self._waiting_bytes() > 0
        if not self._leaving.is_set and (self.flow.write_paused or lingers):
            self._unread = self._waiting_bytes()
            self._leaving.set(self._deadlines.write, self._nothing_has_left)

    def _waiting_bytes(self) -> int:
        """What is written and has not left."""
        try:
            return self.transport.get_write_buffer_size()
        except AttributeError:  # asyncio's TLS transport has let go of its connection, which ends by itself
            return 0

    def _nothing_has_left(self) -> None:
        """Give the client up, unless it is only slow. An ordinary close would wait for it to read, and for ever."""
        if self._unread - self._waiting_bytes() >= LEAST_READ_BYTES:
            self._watch_leaving()
            return
        log.info("a client has not read on for %g s, and is cut off", self._deadlines.write)
        self.transport.abort()
