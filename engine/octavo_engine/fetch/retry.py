"""Trying again: exponential waits with jitter, ended by time without progress rather than by a number of tries."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from octavo_engine.errors import ModelSourceUnreachable
from octavo_engine.fetch.remote import Broken

log = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 0.5, 15.0  # seconds
T = TypeVar("T")


class Stopped(Exception):
    """Another part of the same work has failed; this one need not go on."""


class Patience:
    """How long to go on without progress, in seconds; one for each piece of work."""

    def __init__(self, seconds: float, stop: threading.Event | None = None) -> None:
        self._seconds, self._stop = seconds, stop or threading.Event()
        self.progress()

    def progress(self) -> None:
        """Something arrived: time without progress begins anew."""
        self._since, self._tries = time.monotonic(), 0

    def wait(self, problem: Broken, what: str) -> None:
        """Sleep before the next try; raises ModelSourceUnreachable when that is too long, Stopped when told to."""
        self._tries += 1
        longest = min(LONGEST_WAIT, FIRST_WAIT * 2 ** (self._tries - 1))
        delay = max(longest * random.uniform(0.5, 1.0), problem.retry_after or 0.0)  # noqa: S311 - no secret
        if time.monotonic() + delay > self._since + self._seconds:
            raise ModelSourceUnreachable(
                f"{what}: {problem} (no progress for {self._seconds:g} s, {self._tries} tries)"
            )
        log.warning("%s: %s; next try in %.1f s", what, problem, delay)
        if self._stop.wait(delay):
            raise Stopped

    def call(self, action: Callable[[], T], what: str) -> T:
        """What `action` returns, however often it breaks in between."""
        while True:
            try:
                return action()
            except Broken as problem:
                self.wait(problem, what)
