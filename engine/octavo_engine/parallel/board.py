"""Where each rank writes how often it has met the others, in memory that all share: who is late, when all stand still.

A rank that hangs cannot tell. But those that wait for it have come to a meeting that it has not come to.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Self

import numpy as np

COUNT_BYTES = 8


class Board:
    """One counter for each rank."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self._counts = np.frombuffer(mmap.mmap(descriptor, size * COUNT_BYTES), np.int64)

    @classmethod
    def create(cls, size: int) -> Self:
        """A new one; children who are given its descriptor see it, too."""
        descriptor = os.memfd_create("octavo-ranks")
        os.ftruncate(descriptor, size * COUNT_BYTES)
        return cls(descriptor, size)

    def come(self, rank: int) -> None:
        """A rank has come to the next meeting."""
        self._counts[rank] += 1

    @property
    def counts(self) -> list[int]:
        """Meetings that each rank has come to."""
        counts: list[int] = self._counts.tolist()
        return counts

    def close(self) -> None:
        """Give the descriptor back; the memory goes with the process, or before."""
        os.close(self.descriptor)


def late(counts: Sequence[int]) -> list[int]:
    """The ranks that others wait for."""
    return [rank for rank, count in enumerate(counts) if count < max(counts)]
