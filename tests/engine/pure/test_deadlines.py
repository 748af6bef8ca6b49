"""Clients that do not get on: they are closed by deadlines, told so where they can be, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from moved_clock import MovedClock
from octavo_engine.server.deadlines import Deadlines
from octavo_engine.server.framing import FEW_PIECES, LEAST_BYTES, MAX_HEAD_BYTES
from octavo_engine.server.listeners import Listener, api_listener, bind
from patience import PATIENCE_SECONDS

SHORT = 0.3
LONG = 60.0
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
LARGE = b"y" * 65_536
WHOLE = 1 << 24


@dataclass
class Served:
    """A server, and what its application saw."""

    port: int
    listener: Listener
    began: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, limit=1024)

    async def exchange(self, sent: bytes) -> bytes:
        """Send bytes as they are, and read until the server closes."""
        reader, writer = await self.connect()
        writer.write(sent)
        async with asyncio.timeout(PATIENCE_SECONDS):
            received = await all_of(reader)
        writer.close()
        return received

    async def is_well(self) -> bool:
        """Whether somebody else is served."""
        return (await self.exchange(GET + b"Connection: close\r\n\r\n")).endswith(b"well")

    async def nobody_left(self) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.listener.server_state.connections or self.listener.server_state.tasks:
                await asyncio.sleep(0.01)


Answer = Callable[[Served, Scope, Receive, Send], Awaitable[None]]


async def well(served: Served, scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"well"})


async def endless(served: Served, scope: Scope, receive: Receive, send: Send) -> None:
    """Until it is told that nobody listens."""
    served.began.append(scope["path"])
    gone = asyncio.create_task(until_gone(receive))
    await send({"type": "http.response.start", "status": 200, "headers": []})
    while not gone.done():
        await send({"type": "http.response.body", "body": LARGE, "more_body": True})
        await asyncio.sleep(0)  # what is sent to nobody waits for nothing
    served.left.append(scope["path"])


async def whole(served: Served, scope: Scope, receive: Receive, send: Send) -> None:
    """All at once, and more than any socket takes."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % WHOLE)]})
    await send({"type": "http.response.body", "body": b"z" * WHOLE})


async def reading(served: Served, scope: Scope, receive: Receive, send: Send) -> None:
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            served.left.append(scope["path"])
            return
        more = message["more_body"]
    await well(served, scope, receive, send)


async def until_gone(receive: Receive) -> None:
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()


PATHS: dict[str, Answer] = {"/": well, "/endless": endless, "/whole": whole, "/read": reading}


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    return MovedClock(monkeypatch)


@pytest.fixture
def many_sockets() -> Iterator[None]:
    """As many as the test has at both ends, where a machine allows a thousand files by default."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if most == resource.RLIM_INFINITY else min(4096, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, wanted), most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))


@asynccontextmanager
async def serving(**deadlines: float) -> AsyncIterator[Served]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PATHS[scope["path"]](served, scope, receive, send)

    bound = bind("--port", "127.0.0.1", 0)
    given: dict[str, Any] = {"head": LONG, "body": LONG, "write": LONG} | deadlines
    listener = api_listener(app, Deadlines(**given))
    served = Served(bound.getsockname()[1], listener)
    await listener.start(bound, on_end=lambda: None)
    try:
        yield served
    finally:
        await listener.stop()


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """Until the server closes. What a client sends after that resets the connection, and takes nothing back."""
    parts = list[bytes]()
    with suppress(ConnectionResetError):
        while part := await reader.read(WHOLE):
            parts.append(part)
    return b"".join(parts)


def error_of(reply: bytes, status: int) -> dict[str, Any]:
    """The error of a reply, which is in OpenAI's form, has an id, and ends its connection."""
    head, _, body = reply.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0].startswith(b"http/1.1 %d " % status), reply
    assert b"connection: close" in lines
    assert any(line.startswith(b"x-request-id: ") for line in lines)
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


async def test_five_hundred_connections_that_say_nothing_are_closed_and_nobody_else_notices(
    many_sockets: None, clock: MovedClock
):
    async with serving() as served:
        idle = [await served.connect() for _ in range(500)]
        assert await served.is_well()  # who came before is connected by then
        clock.move_on(LONG)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert {await all_of(reader) for reader, _ in idle} == {b""}
        for _, writer in idle:
            writer.close()
        await served.nobody_left()


@pytest.mark.parametrize("before", [b"", GET + b"\r\n"], ids=["new", "kept"])
async def test_a_head_that_does_not_come_to_its_end_is_told_so(before: bytes, clock: MovedClock):
    async with serving() as served:
        reader, writer = await served.connect()
        if before:
            writer.write(before)
            assert (await reader.readuntil(b"well")).startswith(b"HTTP/1.1 200")
        received = asyncio.create_task(all_of(reader))
        for letter in GET:  # a letter now and then does not extend the time
            if received.done():
                break
            writer.write(bytes([letter]))
            await asyncio.sleep(0.01)
            clock.move_on(LONG / 10)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert error_of(await received, 408)["code"] == "request_timeout"
        writer.close()
        assert await served.is_well()


async def test_a_kept_connection_between_two_requests_is_not_late(clock: MovedClock):
    async with serving(head=10.0) as served:
        reader, writer = await served.connect()
        for _ in range(2):
            writer.write(GET + b"\r\n")
            assert (await reader.readuntil(b"well")).startswith(b"HTTP/1.1 200")
            clock.move_on(20.0)
            await asyncio.sleep(0.01)
        writer.close()


async def test_a_body_that_nobody_reads_has_its_deadline_too():
    """The reply was given without it, as a 401 is; a client could send it for ever."""
    async with serving(body=SHORT) as served:
        reader, writer = await served.connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert (await reader.readuntil(b"well")).startswith(b"HTTP/1.1 200")
        closed = asyncio.create_task(all_of(reader))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not closed.done():
                writer.write(b"x")
                await asyncio.sleep(SHORT / 20)
        writer.close()
        await served.nobody_left()


async def test_one_body_after_the_other_each_has_its_own_time(clock: MovedClock):
    """Each begins in the packet in which the one before ends."""
    async with serving() as served:
        reader, writer = await served.connect()
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n"
        writer.write(head + b"x")
        for _ in range(6):
            await reader.readuntil(b"well")
            clock.move_on(LONG / 2)
            await asyncio.sleep(0.01)
            writer.write(b"x" + head + b"x")
        await reader.readuntil(b"well")
        writer.close()


async def test_who_does_not_read_a_stream_stops_it_and_is_cut_off():
    async with serving(write=SHORT) as served:
        _, writer = await served.connect()
        writer.write(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not served.left:
                await asyncio.sleep(0.01)
        assert served.began == served.left
        await served.nobody_left()
        assert await served.is_well()
        writer.close()


async def test_who_reads_slowly_but_reads_gets_everything(clock: MovedClock):
    """One write that takes longer than the deadline, of which something is read all the time."""
    async with serving(write=20.0) as served:
        reader, writer = await served.connect()
        writer.write(b"GET /whole HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = pieces = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while data := await reader.read(1 << 19):
                received, pieces = received + data.count(b"z"), pieces + 1
                clock.move_on(1.0)
        assert received == WHOLE
        assert pieces > 3 * 20.0
        writer.close()


@pytest.mark.parametrize("close", [b"", b"Connection: close\r\n"], ids=["kept", "closed"])
async def test_an_answer_that_is_written_and_never_read_is_not_kept_for_ever(close: bytes):
    async with serving(write=SHORT) as served:
        reader, writer = await served.connect()
        writer.write(b"GET /whole HTTP/1.1\r\nHost: x\r\n" + close + b"\r\n")
        assert await reader.read(1) == b"H"
        await served.nobody_left()
        writer.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"garbage\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (GET + b"Host: y\r\n\r\n", 400),
        (GET + b"X: " + b"a" * (MAX_HEAD_BYTES - len(GET) - 2), 431),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
    ],
    ids=["garbage", "no host", "two hosts", "too long", "a coding that is not chunked"],
)
async def test_what_is_not_http_is_told_in_openais_form(sent: bytes, status: int):
    async with serving() as served:
        error_of(await served.exchange(sent), status)
        assert await served.is_well()


def in_pieces(number: int, length: int) -> bytes:
    piece = b"%x\r\n%b\r\n" % (length, b"x" * length)
    head = b"POST /read HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + piece * number + b"0\r\n\r\n"


@pytest.mark.parametrize(("number", "length"), [(FEW_PIECES, 1), (2 * FEW_PIECES, LEAST_BYTES), (40, 100_000)])
async def test_bodies_may_come_in_pieces(number: int, length: int):
    async with serving() as served:
        assert (await served.exchange(in_pieces(number, length))).startswith(b"HTTP/1.1 200 ")


async def test_but_not_in_crumbs():
    """Three megabytes, six bytes at a time: seconds of work, of which nobody would have anything."""
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(in_pieces(500_000, 6))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not served.left:
                await asyncio.sleep(0.01)
        received = b""
        with suppress(ConnectionError):  # the reply may be lost, for what comes after it is not read
            received = await all_of(reader)
        if received:
            error_of(received, 400)
        writer.transport.abort()
        await served.nobody_left()
        assert await served.is_well()


async def test_nonsense_in_the_middle_of_a_reply_only_ends_its_connection():
    async with serving() as served:
        reader, writer = await served.connect()
        writer.write(b"POST /endless HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert await reader.read(1) == b"H"
        writer.write(b"no size\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not served.left:
                await asyncio.sleep(0.01)
        await served.nobody_left()
        assert await served.is_well()
        writer.close()
