"""From the first signal to the exit code, and the shorter way out when the step thread is lost."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import NoReturn

from octavo_engine import termination
from octavo_engine.async_engine import AsyncEngine
from octavo_engine.errors import EngineDead, OctavoError
from octavo_engine.server.lifecycle import Lifecycle, State
from octavo_engine.server.listeners import Listener

log = logging.getLogger(__name__)

STOP_SECONDS = 2.0  # for the step that runs when the drain ends; a longer one is left behind
LAST_WORDS_SECONDS = 1.0  # for the event loop to tell clients that the engine is lost
LEAVE_SECONDS = 10.0  # the longest that leaving may take, should even that hang

STDERR = 2
ENGINE_DEAD, ENGINE_STUCK = "EngineDead", "EngineStuck"


class Stop:
    """Set by the first signal, or by an engine or listener that ended by itself. A second signal exits at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.asked = asyncio.Event()
        self._loop = loop

    def on_signals(self) -> None:
        """From now on a signal means to finish what is accepted first."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._signalled)

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

    The API port stays open meanwhile, so that those who come late are told to go elsewhere. After `seconds` it takes
    less than the ten more that a pod has.
    """
    lifecycle.state = State.DRAINING
    log.info("draining: %d running, at most %.0f s", lifecycle.stats().running, seconds)
    listener.retire()
    await engine.drain(seconds)
    await listener.stop()
    if lifecycle.fault is not None:
        termination.leave_word(ENGINE_DEAD, lifecycle.fault)
        return 1
    if not await asyncio.to_thread(engine.stop, STOP_SECONDS):
        log.warning("a step is still running: leaving without it")
        os._exit(0)  # Python's own end would wait for it, or pull the memory from under it
    lifecycle.state = State.STOPPED
    log.info("stopped")
    return 0


def died_of(error: BaseException) -> str:
    """Why the step loop has ended, for people; only our own errors are known to hold nothing secret."""
    return f"the step loop has ended: {error if isinstance(error, OctavoError) else type(error).__name__}"


def leave_stuck(
    lifecycle: Lifecycle, engine: AsyncEngine, fault: str, show_others: Callable[[], None] = lambda: None
) -> None:
    """End the process although the step thread does not answer: say why, show where every thread is, tell clients.

    `show_others` has other processes of this engine show theirs. Runs in the watchdog's thread and writes by itself: a
    lock of the log may be what hangs.
    """
    faulthandler.dump_traceback_later(LEAVE_SECONDS, exit=True, file=STDERR)
    lifecycle.fault = fault
    os.write(STDERR, termination.line(ENGINE_STUCK, fault).encode() + b"\n")
    faulthandler.dump_traceback(STDERR)
    show_others()
    _leave(engine, ENGINE_STUCK, fault)


def leave_broken(lifecycle: Lifecycle, engine: AsyncEngine, fault: str) -> None:
    """The same where another process of this engine has ended: the step thread may wait for it, and for ever."""
    faulthandler.dump_traceback_later(LEAVE_SECONDS, exit=True, file=STDERR)
    lifecycle.fault = fault
    os.write(STDERR, termination.line(ENGINE_DEAD, fault).encode() + b"\n")
    _leave(engine, ENGINE_DEAD, fault)


def _leave(engine: AsyncEngine, reason: str, fault: str) -> NoReturn:
    termination.leave_word(reason, fault)
    engine.give_up(EngineDead("the engine has stopped"))
    time.sleep(LAST_WORDS_SECONDS)
    os._exit(1)
