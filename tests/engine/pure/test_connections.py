"""Bodies on the wire: in chunks that any client can read, by content length, or to the end of the connection."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from octavo_engine.server.connections import is_chunked
from octavo_engine.server.listeners import api_listener, bind
from patience import PATIENCE_SECONDS

PIECES = [b"data: one\n\n", b"x" * 70_000, b"data: \r\n0\r\n\r\n", b"z"]
BODY = b"".join(PIECES)
Sender = Callable[[Send], Awaitable[None]]


async def streamed(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for piece in (b"", *PIECES):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def measured(send: Send) -> None:
    length = b"%d" % len(BODY)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"Content-Length", length)]})
    for piece in PIECES:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


@asynccontextmanager
async def serving(sender: Sender) -> AsyncIterator[int]:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await sender(send)

    bound = bind("--port", "127.0.0.1", 0)
    listener = api_listener(app)
    await listener.start(bound, on_end=lambda: None)
    try:
        yield bound.getsockname()[1]
    finally:
        await listener.stop()


def ask(port: int, version: int, method: str, times: int = 1) -> list[tuple[bytes, dict[str, str]]]:
    """The bodies and headers of requests, one after the other, on one connection where that is possible."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    connection._http_vsn, connection._http_vsn_str = version, f"HTTP/{version // 10}.{version % 10}"  # type: ignore[attr-defined]
    replies = []
    for _ in range(times):
        connection.request(method, "/")
        reply = connection.getresponse()
        replies.append((reply.read(), {name.lower(): value for name, value in reply.getheaders()}))
    connection.close()
    return replies


@pytest.mark.parametrize("sender", [streamed, measured])
@pytest.mark.parametrize("version", [10, 11])
async def test_every_client_reads_the_whole_body_and_may_ask_again(sender: Sender, version: int):
    async with serving(sender) as port:
        replies = await asyncio.to_thread(ask, port, version, "GET", 3)
    assert [body for body, _ in replies] == [BODY] * 3
    chunked = sender is streamed and version == 11
    assert [headers.get("transfer-encoding") for _, headers in replies] == [("chunked" if chunked else None)] * 3


async def test_head_has_no_body_and_leaves_the_connection_usable():
    async with serving(streamed) as port:
        replies = await asyncio.to_thread(ask, port, 11, "HEAD", 3)
    assert [body for body, _ in replies] == [b""] * 3


async def test_a_reader_that_is_late_gets_everything_and_the_sender_waits_for_it():
    sent = 0

    async def long(send: Send) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(400):
            await send({"type": "http.response.body", "body": b"y" * 65_536, "more_body": True})
            sent += 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with serving(long) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        before = -1
        async with asyncio.timeout(PATIENCE_SECONDS):
            while sent != before or not sent:  # until the buffers between us are full
                before = sent
                await asyncio.sleep(0.05)
        assert sent < 400, "what nobody reads is kept in memory"
        received = b""
        while data := await reader.read(1 << 20):
            received += data
        writer.close()
    assert received.count(b"y") == 400 * 65_536
    assert received.endswith(b"\r\n0\r\n\r\n")


async def test_a_client_that_leaves_does_not_break_who_sends():
    ended = asyncio.Event()

    async def endless(send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2_000):
            await send({"type": "http.response.body", "body": b"y" * 65_536, "more_body": True})
        ended.set()

    async with serving(endless) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0)
        writer.transport.abort()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ended.wait()


@pytest.mark.parametrize(
    ("scope", "start", "chunked"),
    [
        ({}, {}, True),
        ({"http_version": "1.0"}, {}, False),
        ({"method": "HEAD"}, {}, False),
        ({}, {"status": 204}, False),
        ({}, {"status": 304}, False),
        ({}, {"headers": [(b"CONTENT-LENGTH", b"3")]}, False),
        ({}, {"headers": [(b"transfer-encoding", b"gzip, chunked")]}, False),
        ({}, {"headers": [(b"content-type", b"text/plain")]}, True),
    ],
)
def test_what_is_sent_in_chunks(scope: dict[str, Any], start: dict[str, Any], chunked: bool):
    assert is_chunked({"http_version": "1.1", "method": "GET"} | scope, {"status": 200} | start) is chunked
