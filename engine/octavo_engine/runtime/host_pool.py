"""Memory of this host that is there when it is given out: fresh, zero, and in huge pages where the kernel has them."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from octavo_engine.errors import InsufficientMemory

POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which Python's mmap does not name
PIECE_BYTES = 1 << 26  # for one thread at a time
GIB = 2.0**30
# Where free memory is in fragments, the kernel moves pages about to make huge ones: two seconds a GiB, measured, where
# small pages take 0.4. So much processor time huge pages may take at first, and for each GiB that came in time:
GRACE_SECONDS, HUGE_SECONDS_A_GIB = 0.5, 0.5


def host_pool(size: int) -> Tensor:
    """uint8 `[size]`, of zeros. Raises InsufficientMemory where the machine does not have that much.

    Every page is there when this returns: a pool that the machine only promised would end the process under load, when
    the promise is called in, and the first requests would wait for their pages. With huge pages, one fault stands for
    512, and attention finds its blocks with fewer looks at the page table. The kernel zeroes pages as it gives them, so
    that nothing is written a second time here.
    """
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise _too_large(size, error) from None
    pool = torch.frombuffer(memory, dtype=torch.uint8)
    address, populate = pool.data_ptr(), Populate()
    with ThreadPoolExecutor(torch.get_num_threads(), "kv-pool") as threads:
        codes = set(
            threads.map(lambda at: populate(address + at, min(PIECE_BYTES, size - at)), range(0, size, PIECE_BYTES))
        )
    if errno.ENOMEM in codes:
        raise _too_large(size, OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
    if codes != {0}:  # a kernel before 5.14
        pool.zero_()
    return pool


class Populate:
    """Puts pages behind pieces of a mapping: huge ones, as long as they do not take too long. For several threads."""

    def __init__(self) -> None:
        self._bytes = 0  # in huge pages so far
        self._seconds = 0.0  # of processor time for them: what others do on the machine is no reason

    def __call__(self, address: int, size: int) -> int:
        """The kernel's error number, or 0."""
        huge = self._seconds <= GRACE_SECONDS + HUGE_SECONDS_A_GIB * self._bytes / GIB
        _advise(address, size, advice=mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        began = time.thread_time()
        code = _advise(address, size, advice=POPULATE_WRITE)
        if huge:
            self._bytes += size
            self._seconds += time.thread_time() - began
        return code


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
