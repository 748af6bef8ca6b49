"""Progress on the terminal: one line for each step, with what it does and how long it took.

It goes to standard error: standard output carries results, such as image references. Steps may run side by side.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PLAIN_INTERVAL = 30.0
_LIVE_INTERVAL = 0.2


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


# What is on the screen is the process's one terminal, whichever thread draws it.
_running: list[Step] = []
_screen = threading.Lock()


@contextmanager
def step(name: str) -> Iterator[Step]:
    """Show a step while its body runs: redrawn in place on a terminal, a line every 30 s in a log."""
    current = Step(name)
    done = threading.Event()
    ticker = threading.Thread(target=_tick, args=(current, done), daemon=True)
    _running.append(current)
    ticker.start()
    mark = "failed"
    try:
        yield current
        mark = "ok"
    finally:
        done.set()
        ticker.join()
        _running.remove(current)
        _write(current.ended(mark))


def note(text: str) -> None:
    """One plain line between steps."""
    _write(text)


def _tick(current: Step, done: threading.Event) -> None:
    live = sys.stderr.isatty()
    while not done.wait(_LIVE_INTERVAL if live else _PLAIN_INTERVAL):
        if live:
            _redraw()
        else:
            _write(current.running())


def _redraw() -> None:
    """All running steps on the terminal's last line, as much of it as there is room for."""
    text = "  |  ".join(item.running() for item in list(_running))
    with _screen:
        sys.stderr.write("\r\x1b[K" + text[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()


def _write(text: str) -> None:
    """A line that stays."""
    clear = "\r\x1b[K" if sys.stderr.isatty() else ""
    with _screen:
        sys.stderr.write(f"{clear}{text}\n")
        sys.stderr.flush()
