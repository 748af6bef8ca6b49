"""What the step thread is at: a beat that it writes, and any thread reads without a lock, which could be what hangs.

A beat says that the thread still moves, not what time it is. Whoever watches counts how long the beat stays the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType

from octavo_engine.batch import Batch

OURS = Path(__file__).parent


class Phase(StrEnum):
    """What the thread does after a beat; each has a limit of its own."""

    IDLE = "idle"  # taking commands, handing out tokens, or waiting for work: then it beats every quarter of a second
    DECODE = "decode"
    PREFILL = "prefill"  # some of the batch is prompt
    WARM_UP = "warm_up"  # a batch of a kind that has not run before: kernels may be compiled in it


@dataclass(frozen=True, slots=True, eq=False)
class Beat:
    """One sign of life; each is an object of its own."""

    phase: Phase
    work: Batch | str | None = None  # what is computed: a batch, or in words; None between two steps
    launched: bool = False  # all of it is handed to the device, and the thread waits for what comes back

    @property
    def doing(self) -> str:
        """What is computed, for people: formatted when it is asked for, since nearly every beat is never looked at."""
        return self.work.words if isinstance(self.work, Batch) else self.work or ""


class Pulse:
    """Written by the step thread alone."""

    def __init__(self) -> None:
        self.beat = Beat(Phase.IDLE)
        self._known: set[str] = set()

    def rest(self) -> None:
        """Beat between two steps."""
        self.beat = Beat(Phase.IDLE)

    @contextmanager
    def computing(self, work: Batch | str, *, launched: bool = False) -> Iterator[None]:
        """The block computes a batch, or something else that has a name of its own; with `launched` it waits for it."""
        kind = work.kind if isinstance(work, Batch) else work
        known = Phase.DECODE if kind == "decode" else Phase.PREFILL
        self.beat = Beat(known if kind in self._known else Phase.WARM_UP, work, launched)
        yield
        self._known.add(kind)
        self.rest()


def place_of(thread: int | None) -> str:
    """Where that thread is in our own code, innermost: `TorchPeers.add_up (parallel/peers.py:51)`; empty if nowhere.

    Takes no lock: what it reads may be a moment old.
    """
    frame = sys._current_frames().get(thread) if thread is not None else None  # noqa: SLF001 (documented, for this)
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    if frame is None:
        return ""
    code = frame.f_code
    return f"{code.co_qualname} ({Path(code.co_filename).relative_to(OURS)}:{frame.f_lineno})"


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(f"{OURS}/")
