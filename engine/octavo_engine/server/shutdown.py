"""From the first signal to the exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from types import FrameType

from octavo_engine.async_engine import AsyncEngine
from octavo_engine.server.lifecycle import Lifecycle, State
from octavo_engine.server.listeners import Listener

log = logging.getLogger(__name__)

STOP_MARGIN_SECONDS = 5.0  # for the step that runs when the drain ends


def leave_on_signal_while_loading() -> None:
    """Nothing is accepted yet, so a signal ends it. As process 1 of a container, the default would be to ignore it."""

    def leave(number: int, _: FrameType | None) -> None:
        log.info("asked to stop by %s while loading", signal.Signals(number).name)
        os._exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


class Stop:
    """Set by the first signal, or by an engine or listener that ended by itself. A second signal exits at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self._loop = loop
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        if self.asked.is_set():
            log.warning("a second signal: leaving at once")
            os._exit(1)
        log.info("asked to stop")
        self.asked.set()

    def from_any_thread(self) -> None:
        """Ask to stop."""
        self._loop.call_soon_threadsafe(self.asked.set)


async def drain_and_stop(lifecycle: Lifecycle, engine: AsyncEngine, listener: Listener, seconds: float) -> int:
    """Refuse what is new, finish what was begun, flush the replies. Returns 0, or 1 when the engine had died.

    The API port stays open meanwhile, so that those who come late are told to go elsewhere.
    """
    died = not engine.alive
    lifecycle.state = State.DRAINING
    log.info("draining: %d running, at most %.0f s", lifecycle.stats().running, seconds)
    try:
        async with asyncio.timeout(seconds + STOP_MARGIN_SECONDS):
            await engine.drain(seconds)
    except TimeoutError:
        log.error("the step loop does not end: leaving without it")
        os._exit(1)
    await listener.stop()
    lifecycle.state = State.STOPPED
    log.info("stopped")
    return 1 if died else 0
