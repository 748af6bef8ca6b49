"""How far a fetch is: counted by the threads that read, shown on the log, asked for over HTTP."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any, Literal

log = logging.getLogger(__name__)

Phase = Literal["resolving", "waiting", "downloading", "done"]  # and "verifying", when all bytes are there
LINE_SECONDS, TERMINAL_SECONDS = 5.0, 0.5
UNITS = ("B", "kB", "MB", "GB", "TB")


class Progress:
    """Counters behind one lock. Bytes that were there from an earlier run count as done, but not as speed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase: Phase = "resolving"
        self._revision: str | None = None
        self._files_total = self._bytes_total = self._files_done = self._bytes_done = self._received = 0
        self._began = time.monotonic()

    def phase(self, phase: Phase) -> None:
        """What is being done now."""
        with self._lock:
            self._phase = phase

    def start(self, revision: str, files: int, size: int) -> None:
        """It is known what there is to do."""
        with self._lock:
            self._revision, self._files_total, self._bytes_total = revision, files, size
            self._files_done = self._bytes_done = self._received = 0
            self._began = time.monotonic()

    def there(self, count: int) -> None:
        """`count` bytes are there already; negative when they turned out to be of no use."""
        with self._lock:
            self._bytes_done += count

    def received(self, count: int) -> None:
        """`count` bytes arrived."""
        with self._lock:
            self._bytes_done += count
            self._received += count

    def file_done(self) -> None:
        """One more file is verified and in its place."""
        with self._lock:
            self._files_done += 1

    def document(self) -> dict[str, Any]:
        """What `/progress` says."""
        with self._lock:
            everything = self._phase == "downloading" and self._bytes_done == self._bytes_total
            return {
                "phase": "verifying" if everything else self._phase,
                "files_done": self._files_done,
                "files_total": self._files_total,
                "bytes_done": self._bytes_done,
                "bytes_total": self._bytes_total,
                "revision": self._revision,
            }

    def line(self) -> str:
        """The same for people: share, speed, time left."""
        now = self.document()
        rate = self._received / max(time.monotonic() - self._began, 1e-3)
        left = (now["bytes_total"] - now["bytes_done"]) / rate if rate else 0.0
        share = 100 * now["bytes_done"] / max(now["bytes_total"], 1)
        text = f"{now['phase']}: {amount(now['bytes_done'])} of {amount(now['bytes_total'])} ({share:.0f} %)"
        text += f", {now['files_done']} of {now['files_total']} files, {amount(rate)}/s"
        return text + (f", {left:.0f} s left" if rate and left else "")


class Reporter:
    """Shows a Progress while its block runs: a line that is renewed on a terminal, else one every few seconds."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._end = progress, threading.Event()
        self._thread = threading.Thread(target=self._run, name="octavo-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        if not sys.stderr.isatty():
            while not self._end.wait(LINE_SECONDS):
                log.info("%s", self._progress.line())
            return
        while not self._end.wait(TERMINAL_SECONDS):
            sys.stderr.write(f"\r\x1b[K{self._progress.line()}")
            sys.stderr.flush()
        sys.stderr.write("\r\x1b[K")


def amount(count: float) -> str:
    """Bytes for people: 3.2 GB."""
    for unit in UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} {UNITS[-1]}"
