"""Watches that go wrong: each takes the API server's lines and gives what a client gets instead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping

from fault_rules import status_document

Lines = AsyncIterator[bytes]

_HELD_SECONDS = 0.5
_REMEMBERED = 20


class BrokenStream(Exception):
    """The connection breaks here, without the end that HTTP asks for."""


async def honest(lines: Lines) -> Lines:
    """As they come."""
    async for line in lines:
        yield line


async def frozen(lines: Lines) -> Lines:
    """The connection stays open and says nothing more."""
    async for _ in lines:
        pass
    yield b""


async def deaf(lines: Lines) -> Lines:
    """Bookmarks come, so that the connection looks well; every event is swallowed."""
    async for line in lines:
        if _kind(line) == "BOOKMARK":
            yield line


async def ended(lines: Lines) -> Lines:
    """A clean end after each event."""
    async for line in lines:
        yield line
        return


async def half_line(lines: Lines) -> Lines:
    """The connection breaks within an event."""
    async for line in lines:
        yield line[: len(line) // 2]
        raise BrokenStream


async def garbage(lines: Lines) -> Lines:
    """A line that is no JSON comes before each event."""
    async for line in lines:
        yield b'{"type": "ADDED", "object": \n'
        yield line


async def unknown_type(lines: Lines) -> Lines:
    """Events of a type that no client knows come before the real ones."""
    async for line in lines:
        yield json.dumps(json.loads(line) | {"type": "MERGED"}).encode() + b"\n"
        yield line


async def doubled(lines: Lines) -> Lines:
    """Each event twice."""
    async for line in lines:
        yield line
        yield line


async def reordered(lines: Lines) -> Lines:
    """Of two events that come close together the second is told first."""
    held: bytes | None = None
    pending: asyncio.Future[bytes] | None = None
    while True:
        pending = pending or asyncio.ensure_future(anext(lines))
        done, _ = await asyncio.wait({pending}, timeout=_HELD_SECONDS)
        if not done:
            if held is not None:
                yield held
                held = None
            continue
        try:
            line = pending.result()
        except StopAsyncIteration:
            break
        finally:
            pending = None
        if held is None:
            held = line
        else:
            yield line
            yield held
            held = None
    if held is not None:
        yield held


async def replayed(lines: Lines) -> Lines:
    """After each event the earlier ones come again, with their older resource versions."""
    earlier: list[bytes] = []
    async for line in lines:
        yield line
        for old in earlier:
            yield old
        earlier = [*earlier, line][-_REMEMBERED:]


async def gone(lines: Lines) -> Lines:
    """The version asked for is too old."""
    yield _error(410)


async def failed(lines: Lines) -> Lines:
    """The API server reports a fault of its own."""
    yield _error(500)


def _error(status: int) -> bytes:
    return json.dumps({"type": "ERROR", "object": status_document(status)}).encode() + b"\n"


def _kind(line: bytes) -> str:
    return str(json.loads(line).get("type", ""))


STREAMS: Mapping[str, Callable[[Lines], Lines]] = {
    made.__name__: made
    for made in (
        *(frozen, deaf, ended, half_line, garbage, unknown_type),
        *(doubled, reordered, replayed, gone, failed),
    )
}
