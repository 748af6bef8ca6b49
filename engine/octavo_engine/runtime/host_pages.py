"""Memory of this host that is there before it is asked for: zero, and in huge pages where the kernel has them.

Loads no torch: pages are put behind a cache while torch is imported, which leaves the other processors idle.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from octavo_engine.errors import InsufficientMemory

POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which Python's mmap does not name
PIECE_BYTES = 1 << 26  # for one thread at a time
GIB = 2.0**30
# Where free memory is in fragments, the kernel moves pages about to make huge ones: two seconds a GiB, measured, where
# small pages take 0.4. So much processor time huge pages may take at first, and for each GiB that came in time:
GRACE_SECONDS, HUGE_SECONDS_A_GIB = 0.5, 0.5

Put = Callable[[int, int], int]  # address and bytes of a piece -> the kernel's error number, or 0


class HostPages:
    """A range of addresses that gets its pages piece by piece. Its owner is one thread."""

    def __init__(self, size: int) -> None:
        """`size` bytes, none there yet. Raises InsufficientMemory where the machine does not promise them."""
        try:
            self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise _too_large(size, error) from None
        self.size = size
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._allowance = HugeAllowance()
        self._lock = threading.Lock()
        self._taken = 0  # bytes: the pieces before have their pages, or a thread sees to them
        self._wanted = size  # bytes
        self._ahead: threading.Thread | None = None
        self._ahead_may_go_on = False

    def begin(self) -> None:
        """Put pages behind the range from now on, in a thread of its own.

        It writes them. To ask the kernel for a piece at once is faster, but keeps the process's address space locked
        meanwhile: whoever loads a library would wait.
        """
        self._ahead_may_go_on = True
        self._ahead = threading.Thread(target=self._go_ahead, name="kv-pool-ahead", daemon=True)
        self._ahead.start()

    def expect(self, size: int) -> None:
        """No more than `size` bytes will be wanted: what others could use is given back."""
        with self._lock:
            self._wanted, taken = min(size, self._wanted), self._taken
        if taken > self._wanted:
            self._stop_ahead()
            kept = -(-self._wanted // mmap.PAGESIZE) * mmap.PAGESIZE
            _advise(self._address + kept, taken - kept, advice=mmap.MADV_DONTNEED)

    def complete(self, size: int, threads: int) -> None:
        """Return when each of the first `size` bytes is there; raises InsufficientMemory where they cannot be."""
        self.expect(size)
        self._stop_ahead()
        pieces = iter(self._take, None)
        with ThreadPoolExecutor(threads, "kv-pool") as pool:
            codes = set(pool.map(lambda piece: self._put(piece, _populate), pieces)) - {0}
        if codes:
            raise _too_large(size, OSError(code := codes.pop(), os.strerror(code)))

    def _go_ahead(self) -> None:
        while self._ahead_may_go_on and (piece := self._take()) is not None:
            self._put(piece, _write)

    def _stop_ahead(self) -> None:
        """Let it end the piece that it is at."""
        self._ahead_may_go_on = False
        if self._ahead is not None:
            self._ahead.join()

    def _take(self) -> range | None:
        """The next piece, or None after the last."""
        with self._lock:
            if self._taken >= self._wanted:
                return None
            piece = range(self._taken, min(self._taken + PIECE_BYTES, self._wanted))
            self._taken = piece.stop
            return piece

    def _put(self, piece: range, put: Put) -> int:
        return self._allowance.spend(self._address + piece.start, len(piece), put)


class HugeAllowance:
    """Pages are huge as long as making them does not take too long. For several threads."""

    def __init__(self) -> None:
        self._bytes = 0  # in huge pages so far
        self._seconds = 0.0  # of processor time for them: what others do on the machine is no reason

    def spend(self, address: int, size: int, put: Put) -> int:
        """Put pages behind a piece; the kernel's error number, or 0."""
        huge = self._seconds <= GRACE_SECONDS + HUGE_SECONDS_A_GIB * self._bytes / GIB
        _advise(address, size, advice=mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        began = time.thread_time()
        code = put(address, size)
        if huge:
            self._bytes += size
            self._seconds += time.thread_time() - began
        return code


def _populate(address: int, size: int) -> int:
    """By the kernel, which zeroes pages as it gives them; a kernel before 5.14 cannot, and they are written."""
    code = _advise(address, size, advice=POPULATE_WRITE)
    return _write(address, size) if code == errno.EINVAL else code


def _write(address: int, size: int) -> int:
    ctypes.CDLL(None).memset(ctypes.c_void_p(address), 0, ctypes.c_size_t(size))
    return 0


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
