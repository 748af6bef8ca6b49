"""Progress on the terminal: one line for each step, with what it does and how long it took.

It goes to standard error: standard output carries results, such as image references.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PLAIN_INTERVAL = 30.0


class Step:
    """A step in progress: its name, its start, and what it is doing right now."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._detail: Callable[[], str] = str
        self._started = time.monotonic()

    def follow(self, detail: Callable[[], str]) -> None:
        """Show what `detail` returns beside the name while the step runs."""
        self._detail = detail

    def running(self) -> str:
        """The line shown while it runs."""
        detail = self._detail()
        return f"{self.ended('...')}  {detail}" if detail else self.ended("...")

    def ended(self, mark: str) -> str:
        """The line that stays, with `mark` before it."""
        return f"{mark:<6} {time.monotonic() - self._started:6.1f}s  {self.name}"


@contextmanager
def step(name: str) -> Iterator[Step]:
    """Show a step while its body runs: redrawn in place on a terminal, a line every 30 s in a log."""
    current = Step(name)
    done = threading.Event()
    ticker = threading.Thread(target=_tick, args=(current, done), daemon=True)
    ticker.start()
    mark = "failed"
    try:
        yield current
        mark = "ok"
    finally:
        done.set()
        ticker.join()
        _write(current.ended(mark), final=True)


def note(text: str) -> None:
    """One plain line between steps."""
    _write(text, final=True)


def _tick(current: Step, done: threading.Event) -> None:
    live = sys.stderr.isatty()
    while not done.wait(0.2 if live else _PLAIN_INTERVAL):
        _write(current.running(), final=not live)


def _write(text: str, *, final: bool) -> None:
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    sys.stderr.write(clear + text + ("\n" if final else ""))
    sys.stderr.flush()
