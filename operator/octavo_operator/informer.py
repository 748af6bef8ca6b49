"""Keeps a watcher running: in a thread with an event loop of its own, and again whenever it ends.

kopf takes the loop it runs in for its own: when it ends it cancels every task it finds there, and on the main thread
it takes the process's signals. So it gets a loop to itself, and what it says crosses over as plain values.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

log = logging.getLogger(__name__)

Watch = Callable[[asyncio.Event], Awaitable[None]]
"""Watches until the event is set, or fails."""

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
CALM_SECONDS = 60.0
_END_SECONDS = 15.0


class Informer:
    """Lives of a watcher, one after the other.

    Args:
        begun: called before each life.
    """

    def __init__(self, watch: Watch, begun: Callable[[], None]) -> None:
        self._watch = watch
        self._begun = begun
        self._life: _Life | None = None
        self._pause = FIRST_PAUSE

    async def run(self) -> None:
        """Runs until cancelled. Pauses after failures double while lives are short, up to `LONGEST_PAUSE`."""
        loop = asyncio.get_running_loop()
        while True:
            self._begun()
            started = loop.time()
            self._life = _Life(self._watch)
            try:
                error = await self._life.ended
            finally:
                self._life.stop()
            if error is None or loop.time() - started > CALM_SECONDS:
                self._pause = FIRST_PAUSE
            log.warning("watching begins again in %.0f s: %s", self._pause, _words(error))
            await asyncio.sleep(self._pause)
            self._pause = min(LONGEST_PAUSE, 2 * self._pause)

    def restart(self) -> None:
        """Ends the present life; one that does not end is left to itself, and the next begins."""
        if self._life is not None:
            self._life.stop()
            asyncio.get_running_loop().call_later(_END_SECONDS, self._life.abandon)


class _Life:
    """One run of the watcher in a thread."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._here = asyncio.get_running_loop()
        self._there: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self.ended: asyncio.Future[BaseException | None] = self._here.create_future()
        threading.Thread(target=self._main, name="informer", daemon=True).start()

    def stop(self) -> None:
        """Asks it to end; harmless when it has."""
        if self._there is None:
            self._stop.set()
        else:
            with suppress(RuntimeError):  # it has ended, and its loop is closed
                self._there.call_soon_threadsafe(self._stop.set)

    def abandon(self) -> None:
        """Takes it for ended."""
        if not self.ended.done():
            self.ended.set_result(TimeoutError("it did not end when it was asked to"))

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._live())
        except Exception as failure:
            error = failure
        with suppress(RuntimeError):  # the process ends, and its loop is closed
            self._here.call_soon_threadsafe(self._tell, error)

    async def _live(self) -> None:
        self._there = asyncio.get_running_loop()
        await self._watch(self._stop)

    def _tell(self, error: BaseException | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)


def _words(error: BaseException | None) -> str:
    return "it was asked to" if error is None else f"{type(error).__name__}: {str(error)[:300]}"
