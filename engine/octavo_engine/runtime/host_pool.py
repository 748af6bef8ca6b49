"""Memory of this host that is there when it is given out: fresh, zero, and in huge pages where the kernel has them."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from octavo_engine.errors import InsufficientMemory

POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which Python's mmap does not name
PIECE_BYTES = 1 << 28  # for one thread at a time
GIB = 2.0**30


def host_pool(size: int) -> Tensor:
    """uint8 `[size]`, of zeros. Raises InsufficientMemory where the machine does not have that much.

    Every page is there when this returns: a pool that the machine only promised would end the process under load, when
    the promise is called in, and the first requests would wait for their pages. With huge pages, one fault stands for
    512, and attention finds its blocks with fewer looks at the page table; that advice may be refused, and nothing is
    lost. The kernel zeroes pages as it gives them, so that nothing is written a second time here.
    """
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise _too_large(size, error) from None
    pool = torch.frombuffer(memory, dtype=torch.uint8)
    _advise(pool.data_ptr(), size, advice=mmap.MADV_HUGEPAGE)
    with ThreadPoolExecutor(torch.get_num_threads(), "kv-pool") as threads:
        codes = set(threads.map(lambda piece: _advise(*piece, advice=POPULATE_WRITE), _pieces(pool.data_ptr(), size)))
    if errno.ENOMEM in codes:
        raise _too_large(size, OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
    if codes != {0}:  # a kernel before 5.14
        pool.zero_()
    return pool


def _pieces(address: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(0, size, PIECE_BYTES):
        yield address + start, min(PIECE_BYTES, size - start)


def _advise(address: int, size: int, *, advice: int) -> int:
    """The error number, or 0. Through ctypes, which lets other threads run: it may take seconds."""
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    failed = madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice)
    return ctypes.get_errno() if failed else 0


def _too_large(size: int, error: OSError) -> InsufficientMemory:
    return InsufficientMemory(
        f"the machine does not give {size / GIB:.2f} GiB for the KV cache ({error.strerror}):"
        " lower --kv-cache-memory-bytes, or end what else holds its memory"
    )
