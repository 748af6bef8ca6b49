"""Running a body's requests: submit them together, read them as one sequence, and let none run on for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from starlette.types import Receive

from octavo_engine.async_engine import AsyncEngine, Stream
from octavo_engine.errors import OctavoError
from octavo_engine.output import Delta
from octavo_engine.request import FinishReason, Request
from octavo_engine.server.replies import Refusal

Indexed = tuple[int, Delta]


async def generate(engine: AsyncEngine, requests: Sequence[Request], receive: Receive) -> AsyncGenerator[Indexed, None]:
    """The deltas of all requests as they come, each with its request's index.

    A client that goes away ends them all, and so does leaving this iterator early. Raises what `submit` and the
    streams raise, and Refusal for a request that was ended from outside.
    """
    streams = engine.submit_all(requests)
    try:
        async with _ended_by_disconnect(streams, receive), aclosing(_merge(streams)) as deltas:
            async for index, delta in deltas:
                _check_end(delta)
                yield index, delta
    finally:
        for stream in streams:
            stream.cancel()


@asynccontextmanager
async def _ended_by_disconnect(streams: Sequence[Stream], receive: Receive) -> AsyncIterator[None]:
    """The body has been read, so the next message from the client is that it has gone."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        for stream in streams:
            stream.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()


async def _merge(streams: Sequence[Stream]) -> AsyncGenerator[Indexed, None]:
    arrived: asyncio.Queue[tuple[int, Delta | OctavoError]] = asyncio.Queue()

    async def forward(index: int, stream: Stream) -> None:
        try:
            async for delta in stream:
                arrived.put_nowait((index, delta))
        except OctavoError as error:
            arrived.put_nowait((index, error))

    tasks = [asyncio.create_task(forward(index, stream)) for index, stream in enumerate(streams)]
    try:
        running = len(streams)
        while running:
            index, item = await arrived.get()
            if isinstance(item, OctavoError):
                raise item
            running -= item.finish_reason is not None
            yield index, item
    finally:
        for task in tasks:
            task.cancel()


def _check_end(delta: Delta) -> None:
    if delta.finish_reason is FinishReason.DEADLINE:
        raise Refusal(504, "the request took longer than the server allows", "timeout", code="deadline_exceeded")
