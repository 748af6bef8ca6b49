"""Memory for packed weights: one after another in huge pages, where the kernel gives them.

A decode step reads all weights once. In pages of 4 KiB, the processor's own prefetching stops at each of them, and each
costs a look at the page table: memory is read a fifth slower. A weight of a small model is less than one huge page, so
they share them.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence
from contextlib import suppress

import torch
from torch import Tensor

HUGE_PAGE_BYTES = 2 * 1024**2
CHUNK_BYTES = 32 * HUGE_PAGE_BYTES  # only what is written of it takes memory
ALIGNMENT = 64  # bytes: a line of the caches


class Arena:
    """Hands out memory from chunks. A chunk is given back when no tensor is left in it. From any thread."""

    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._chunk_bytes = chunk_bytes
        self._lock = threading.Lock()
        self._left = torch.empty(0, dtype=torch.uint8)  # of the newest chunk

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor of any content."""
        size = torch.Size(shape).numel() * dtype.itemsize
        taken = -(-size // ALIGNMENT) * ALIGNMENT
        with self._lock:
            if taken > len(self._left):
                self._left = _chunk(max(taken, self._chunk_bytes))
            piece, self._left = self._left[:size], self._left[taken:]
        return piece.view(dtype).view(shape)


def _chunk(size: int) -> Tensor:
    """At least `size` bytes from the beginning of a huge page on. The advice may be refused; then pages are small."""
    memory = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)  # holds the memory as long as a part of it is in use
    return whole[-whole.data_ptr() % HUGE_PAGE_BYTES :]


WEIGHTS = Arena()
