"""How long the step thread waits for its turn: for a processor, or for the interpreter, which another thread holds.

Linux counts for each thread the time on a processor and the time in the queue for one
(`/proc/thread-self/schedstat`). What is left of the time that has passed, the thread was blocked; and between waiting
for work and waiting for a device nothing blocks it but the interpreter's lock. Kernels give that up while they compute,
and have to get it back: whoever reads a large body as JSON meanwhile keeps it for as long as that takes. Where several
threads compute a forward pass, or several ranks, it also waits for these, and nobody can tell the one from the other:
there only the queue for a processor is counted of it. A look costs 1.5 µs; a step has two, or four.

Where the kernel does not count (another system, a sandbox), nothing is told. Knows neither engine nor metrics.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

COUNTED = "/proc/thread-self/schedstat"  # nanoseconds on a processor, nanoseconds in the queue, turns
NANO = 1e-9


class Awaited(StrEnum):
    """What the thread waited for."""

    PROCESSOR = "processor"
    INTERPRETER = "interpreter"


class Look(NamedTuple):
    """The thread's account at one moment, in seconds."""

    at: float
    ran: float
    queued: float


class Turns:
    """Written by the step thread alone; `waited` may be read by any, in seconds."""

    def __init__(self) -> None:
        self.waited = dict.fromkeys(Awaited, 0.0)
        self._file: int | None = None
        self._mark = Look(0.0, 0.0, 0.0)

    @contextmanager
    def of_this_thread(self) -> Iterator[None]:
        """Count in the block, for the thread that runs it."""
        try:
            file = os.open(COUNTED, os.O_RDONLY)
        except OSError:
            yield
            return
        try:
            self._file = file if _counts(file) else None
            self._mark = self._look()
            yield
        finally:
            self._file = None
            os.close(file)

    @contextmanager
    def away(self) -> Iterator[None]:
        """The block waits for work, or for a device: none of it counts."""
        self._count(self._look())
        yield
        self._mark = self._look()

    @contextmanager
    def together(self) -> Iterator[None]:
        """The block computes together with others, and waits for them: the queue for a processor alone counts."""
        before = self._look()
        self._count(before)
        yield
        self._mark = self._look()
        self.waited[Awaited.PROCESSOR] += self._mark.queued - before.queued

    def _count(self, now: Look) -> None:
        """What has passed since the mark was Python."""
        passed, ran, queued = (after - before for before, after in zip(self._mark, now, strict=True))
        self.waited[Awaited.PROCESSOR] += queued
        self.waited[Awaited.INTERPRETER] += max(0.0, passed - ran - queued)

    def _look(self) -> Look:
        if self._file is None:
            return self._mark
        ran, queued, _ = os.pread(self._file, 64, 0).split()
        return Look(time.perf_counter(), int(ran) * NANO, int(queued) * NANO)


def _counts(file: int) -> bool:
    """A kernel that does not count says that the thread, which runs, never has."""
    return int(os.pread(file, 64, 0).split()[2]) > 0
