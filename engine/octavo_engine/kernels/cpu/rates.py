"""What this machine can do at best, measured in a moment: the figures that a kernel's time is judged by.

Each is the best of a few short trials: whatever else the machine does can only make one slower.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

import torch

from octavo_engine.kernels.cpu.arena import Arena
from octavo_engine.kernels.cpu.library import SUFFIXES, kernels

TRIALS = 5
READ_BYTES = 256 * 1024**2  # more than the caches of a processor hold
ROUNDS = 50_000  # of a register tile; under a millisecond with AVX-512


def read_rate(threads: int, size: int = READ_BYTES) -> float:
    """Bytes a second at which `threads` threads together read memory, `size` bytes in all."""
    read = reader(threads, size)

    def seconds() -> float:
        began = time.perf_counter()
        read()
        return time.perf_counter() - began

    return size / min(seconds() for _ in range(TRIALS))


def reader(threads: int, size: int = READ_BYTES) -> Callable[[], None]:
    """What `read_rate` takes the time of: reads `size` bytes once."""
    data = Arena(size).empty([size // 4], torch.float32).fill_(1)  # where weights lie; touched, so that it is there
    return lambda: kernels().octavo_read(data.data_ptr(), size, threads)


def product_rate(dtype: torch.dtype, threads: int) -> float:
    """Operations a second of all threads, a product and its sum being two, with operands of `dtype` in registers.

    By the processor time of each thread: no other process lowers it, except by the clock that the processors share.
    """
    measure, rate = getattr(kernels(), f"octavo_product_rate_{SUFFIXES[dtype]}"), ctypes.c_double()

    def once() -> float:
        measure(ROUNDS, threads, ctypes.byref(rate))
        return rate.value

    return max(once() for _ in range(TRIALS))
