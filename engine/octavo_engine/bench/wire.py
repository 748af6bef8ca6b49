"""HTTP/1.1 as a client, close to the socket: cheap for each piece of a stream, so that the client is no bottleneck.

Owns connections, their reuse and their end. Knows nothing of models: what a reply holds goes to a `Receiver`, as it
comes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from typing import Protocol, Self, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from octavo_engine import __version__
from octavo_engine.errors import InvalidConfiguration, OctavoError

AGENT = f"octavo-bench/{__version__}"
FRAMING = (b"content-length", b"transfer-encoding")


class Cut(OctavoError):
    """The connection ended before the reply did. `begun`: some of the reply had come."""

    def __init__(self, message: str, *, begun: bool) -> None:
        super().__init__(message)
        self.begun = begun


class Unreadable(OctavoError):
    """What came is no HTTP."""


class Receiver(Protocol):
    """Takes a reply as it comes. `at` is `time.monotonic()` when the bytes were read from the socket."""

    def head(self, status: int) -> None:
        """The status, before any body."""

    def body(self, data: bytes, at: float) -> None:
        """A part of the body."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is: what a URL says, without the `/v1` that some write at its end."""

    host: str
    port: int
    secure: bool
    prefix: str

    @classmethod
    def of(cls, url: str, flag: str = "--url") -> Self:
        """Read a URL; raises InvalidConfiguration."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError as error:
            raise InvalidConfiguration(f"{flag} is {url!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidConfiguration(f"{flag} is {url!r}; it must be like http://127.0.0.1:8000")
        secure = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if secure else 80), secure, prefix)

    @property
    def url(self) -> str:
        """The same as text, without credentials that the URL may have held."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.prefix}"


class Wire(asyncio.Protocol):
    """One connection: one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser: HttpResponseParser | None = None
        self._receiver: Receiver | None = None
        self._done: asyncio.Future[None] | None = None
        self._read_at = 0.0
        self._status = 0
        self._framed = self._keep = False
        self.lost = False
        self.reusable = False

    async def exchange(self, request: bytes, receiver: Receiver) -> None:
        """Send, and receive until the reply is whole. Raises Cut or Unreadable; who cancels it hangs up."""
        if self.lost:
            raise Cut("the server has closed the connection", begun=False)
        assert self._transport is not None
        self._parser, self._receiver = HttpResponseParser(self), receiver
        self._done = asyncio.get_running_loop().create_future()
        self._status, self._framed, self.reusable = 0, False, False
        self._transport.write(request)
        try:
            await self._done
        finally:
            if not self.reusable:
                self.hang_up()

    def hang_up(self) -> None:
        """Close, whatever is under way: the server sees it at once."""
        self.lost = True
        if self._transport is not None:
            self._transport.abort()

    # -- what asyncio calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of a reply; of none that was asked for, the end."""
        self._read_at = time.monotonic()
        if self._parser is None or self._done is None or self._done.done():
            self.hang_up()
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._end(Unreadable(f"what came is no HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """A reply that did not say how long it is ends here; any other is cut."""
        self.lost, self.reusable = True, False
        if self._status >= 200 and not self._framed and exc is None:
            self._end(None)
        else:
            why = f": {exc}" if exc else ""
            self._end(Cut(f"the connection ended before the reply did{why}", begun=self._status > 0))

    # -- what httptools calls --------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:  # noqa: ARG002 (httptools' signature)
        """Whether the reply says where it ends."""
        self._framed = self._framed or name.lower() in FRAMING

    def on_headers_complete(self) -> None:
        """The head is whole; one that only announces another (1xx) is passed over."""
        assert self._parser is not None
        assert self._receiver is not None
        self._status = self._parser.get_status_code()
        if self._status >= 200:
            self._keep = self._parser.should_keep_alive()
            self._receiver.head(self._status)

    def on_body(self, body: bytes) -> None:
        """A part of it."""
        assert self._receiver is not None
        self._receiver.body(body, self._read_at)

    def on_message_complete(self) -> None:
        """The reply is whole."""
        if self._status >= 200:
            self.reusable = self._keep
            self._end(None)

    def _end(self, error: OctavoError | None) -> None:
        if self._done is None or self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)


class Connections:
    """The connections to one server: kept for the next request as long as the server keeps them."""

    def __init__(self, target: Target, *, api_key: str | None, seconds: float) -> None:
        self._target = target
        self._seconds = seconds
        self._tls = ssl.create_default_context() if target.secure else None
        self._idle: list[Wire] = []
        default = target.port == (443 if target.secure else 80)
        host = f"[{target.host}]" if ":" in target.host else target.host
        self._common = f"Host: {host}{'' if default else f':{target.port}'}\r\nUser-Agent: {AGENT}\r\n" + (
            f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        )

    async def send(self, method: str, path: str, receiver: Receiver, body: bytes | None = None) -> None:
        """One exchange. Raises Cut, Unreadable, OSError where nobody can be reached, and TimeoutError."""
        request = self._request(method, path, body)
        async with asyncio.timeout(self._seconds):
            while (kept := self._kept()) is not None:
                try:
                    return await self._exchange(kept, request, receiver)
                except Cut as cut:  # the server had closed it while the request was on its way: no fault of anybody
                    if cut.begun:
                        raise
            return await self._exchange(await self._connect(), request, receiver)

    @property
    def url(self) -> str:
        """Of the server."""
        return self._target.url

    def close(self) -> None:
        """Hang up those that are idle."""
        while self._idle:
            self._idle.pop().hang_up()

    def _kept(self) -> Wire | None:
        while self._idle:
            wire = self._idle.pop()
            if not wire.lost:
                return wire
        return None

    async def _connect(self) -> Wire:
        loop, target = asyncio.get_running_loop(), self._target
        _, wire = await loop.create_connection(Wire, target.host, target.port, ssl=self._tls)
        return wire

    async def _exchange(self, wire: Wire, request: bytes, receiver: Receiver) -> None:
        await wire.exchange(request, receiver)
        if wire.reusable:
            self._idle.append(wire)

    def _request(self, method: str, path: str, body: bytes | None) -> bytes:
        head = f"{method} {self._target.prefix}{path} HTTP/1.1\r\n{self._common}Accept-Encoding: identity\r\n"
        if body is None:
            return f"{head}\r\n".encode()
        return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
