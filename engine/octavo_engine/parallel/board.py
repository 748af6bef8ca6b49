"""Where each rank writes how often it has met the others, and for what, in memory that all share: who is late, when all
stand still.

A rank that hangs cannot tell. But those that wait for it have come to a meeting that it has not come to.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from enum import IntEnum
from typing import Self

import numpy as np

ROW_BYTES = 2 * 8


class Meeting(IntEnum):
    """What ranks meet for."""

    ALL_REDUCE = 1
    GATHER = 2
    BROADCAST = 3

    @property
    def words(self) -> str:
        """For people."""
        return {1: "an all-reduce", 2: "a gather", 3: "a broadcast"}[self]


class Board:
    """A row for each rank: the meetings that it has come to, and what the latest is for. Only that rank writes it."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.descriptor = descriptor
        self._rows = np.frombuffer(mmap.mmap(descriptor, size * ROW_BYTES), np.int64).reshape(size, 2)

    @classmethod
    def create(cls, size: int) -> Self:
        """A new one; children who are given its descriptor see it, too."""
        descriptor = os.memfd_create("octavo-ranks")
        os.ftruncate(descriptor, size * ROW_BYTES)
        return cls(descriptor, size)

    def come(self, rank: int, meeting: Meeting) -> None:
        """A rank has come to the next meeting."""
        row = self._rows[rank]
        row[1] = meeting
        row[0] += 1

    @property
    def counts(self) -> list[int]:
        """Meetings that each rank has come to."""
        counts: list[int] = self._rows[:, 0].tolist()
        return counts

    @property
    def present(self) -> Meeting:
        """What those who are not late have come for; there was a meeting."""
        return Meeting(self._rows[self._rows[:, 0].argmax(), 1])

    def close(self) -> None:
        """Give the descriptor back; the memory goes with the process, or before."""
        os.close(self.descriptor)


def late(counts: Sequence[int]) -> list[int]:
    """The ranks that others wait for."""
    return [rank for rank, count in enumerate(counts) if count < max(counts)]
