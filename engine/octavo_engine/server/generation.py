"""Running a body's requests: submit them together, read them as one sequence, and let none run on for nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from octavo_engine.async_engine import FAILED, AsyncEngine, Stream, failure_of
from octavo_engine.errors import OctavoError, Overloaded
from octavo_engine.mailbox import Item, Mailbox
from octavo_engine.output import Delta
from octavo_engine.request import FinishReason, Request
from octavo_engine.server.replies import Refusal

Indexed = tuple[int, Delta]


async def generate(
    engine: AsyncEngine,
    requests: Sequence[Request],
    receive: Receive,
    *,
    whole: bool = False,
    at_once: int | None = None,
) -> AsyncGenerator[list[Indexed], None]:
    """The deltas of all requests as they come, each with its request's index: at once what has come at once.

    `whole`: nobody looks before a request has ended, so the reader is not woken before. `at_once`: more are not in the
    engine at a time, so that a long list leaves room in the queue for others. A client that goes away ends them all,
    and so does leaving this iterator early. Raises what `submit` and the streams raise, and Refusal for a request that
    was ended from outside.
    """
    mailbox, streams = Mailbox(only_ends=whole), list[Stream]()

    def submit(more: int) -> None:
        first = len(streams)
        wave = requests[first : first + more]
        for request in wave if first else ():
            request.arrive(time.monotonic())
        for index, stream in enumerate(engine.submit_all(wave), first):
            stream.deliver_to(mailbox, index)
            streams.append(stream)

    submit(len(requests) if at_once is None else at_once)
    running = len(streams)
    try:
        async with _ended_by_disconnect(streams, receive) as watcher:
            while running:
                deltas, error = _sorted(await mailbox.take(), requests, engine.retry_seconds)
                ended = sum(delta.finish_reason is not None for _, delta in deltas)
                if deltas:
                    yield deltas
                if error is not None:
                    raise error
                before = len(streams)
                if ended and before < len(requests):
                    if watcher.done():
                        raise ClientDisconnect  # the rest has not been begun, and nobody wants it
                    submit(ended)
                running += len(streams) - before - ended
    finally:
        for stream in streams:
            stream.cancel()


@asynccontextmanager
async def _ended_by_disconnect(streams: Sequence[Stream], receive: Receive) -> AsyncIterator[asyncio.Task[None]]:
    """The body has been read, so the next message from the client is that it has gone: then the task is done."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        for stream in streams:
            stream.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield watcher
    finally:
        watcher.cancel()


def _sorted(
    arrived: list[tuple[int, Item]], requests: Sequence[Request], retry_seconds: Callable[[], int]
) -> tuple[list[Indexed], Exception | None]:
    """What has come before the first error, and that error."""
    deltas: list[Indexed] = []
    for index, item in arrived:
        if isinstance(item, OctavoError):
            return deltas, item
        if item.finish_reason in FAILED:
            return deltas, failure_of(requests[index])
        if item.finish_reason is FinishReason.DEADLINE:
            message = "the request took longer than the server allows"
            return deltas, Refusal(504, message, "timeout", code="deadline_exceeded")
        if item.finish_reason is FinishReason.QUEUE_DEADLINE:
            message = f"no place became free in time; try again in {(seconds := retry_seconds())} s"
            return deltas, Overloaded(message, reason=item.finish_reason, retry_after=seconds)
        deltas.append((index, item))
    return deltas, None
