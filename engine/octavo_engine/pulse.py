"""What the step thread is at: a beat that it writes, and any thread reads without a lock, which could be what hangs.

A beat says that the thread still moves, not what time it is. Whoever watches counts how long the beat stays the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum


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


class Pulse:
    """Written by the step thread alone."""

    def __init__(self) -> None:
        self.beat = Beat(Phase.IDLE)
        self._known: set[str] = set()

    def rest(self) -> None:
        """Beat between two steps."""
        self.beat = Beat(Phase.IDLE)

    @contextmanager
    def computing(self, kind: str) -> Iterator[None]:
        """The block computes a batch of this `Batch.kind`."""
        known = Phase.DECODE if kind == "decode" else Phase.PREFILL
        self.beat = Beat(known if kind in self._known else Phase.WARM_UP)
        yield
        self._known.add(kind)
        self.rest()
