"""What the device under an engine can do at best: from the makers' table, from the cache, or measured in a moment.

A quick look, not a benchmark: the best of some repetitions, by the compiled kernels' own tests where they run, else by
torch's operations. It is kept in the user's cache, and a later measurement replaces it only by better figures, since a
busy machine measures too little. It takes some of a device's memory, and gives it back: a start looks before the cache
takes all that is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from octavo_engine import machine_cache
from octavo_engine.config import read_cpu_kernels
from octavo_engine.devices import by_driver_name
from octavo_engine.kernels.cpu import library, rates
from octavo_engine.kernels.cpu.targets import choose, features
from octavo_engine.roofline import Machine

READ_BYTES = 128 * 1024**2  # beyond every cache near a core, and touched in a twentieth of a second
ROWS, WIDTH = {"cpu": 128, "cuda": 4096}, {"cpu": 1024, "cuda": 4096}  # a slow product of float16 takes 0.04 s
TRY_SECONDS = 0.04
CPUINFO = Path("/proc/cpuinfo")


def machine_of(device: torch.device, dtype: torch.dtype, *, anew: bool = False) -> Machine:
    """The figures of `device` for products of `dtype`; `anew` measures even if the cache has them."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    if known := by_driver_name(name):
        return known.machine(dtype.itemsize)
    name = name if device.type == "cuda" else f"{name}, {torch.get_num_threads()} threads"
    key = f"{name}, {str(dtype).removeprefix('torch.')}, {_method(device, dtype)}"
    cached = machine_cache.load().get(key)
    if cached is not None and not anew:
        return cached
    measured = measure(name, device, dtype)
    return measured if busy() and not anew else machine_cache.keep(key, measured)


def busy() -> bool:
    """Whether others use this machine so much that its memory is slower for us; such figures should not last."""
    return os.getloadavg()[0] > (os.cpu_count() or 1)


def processor(cpuinfo: Path = CPUINFO) -> str:
    """What this machine's processor calls itself."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")


def _method(device: torch.device, dtype: torch.dtype) -> str:
    """Whose operations measure: torch's, or the kernels compiled for a set of instructions."""
    if device.type != "cpu" or dtype not in library.SUFFIXES or library.load() is None:
        return "torch"
    target = choose(read_cpu_kernels(os.environ), features())
    return "torch" if target is None else target.name


def measure(name: str, device: torch.device, dtype: torch.dtype) -> Machine:
    """Read through a large piece of memory, and multiply, each a few times; about a fifth of a second."""
    if _method(device, dtype) != "torch":
        threads = torch.get_num_threads()
        bandwidth, flops = rates.read_rate(threads, READ_BYTES), rates.product_rate(dtype, threads)
        return Machine(name=name, bandwidth=bandwidth, flops=flops)
    machine = Machine(name=name, bandwidth=_read_rate(device), flops=_product_rate(device, dtype))
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what the allocator holds in reserve would count as the weights'
    return machine


@torch.inference_mode()
def _read_rate(device: torch.device) -> float:
    """Bytes a second of the fastest plain read: a sum."""
    content = torch.full((READ_BYTES // 4,), 0.5, dtype=torch.float32, device=device)
    return READ_BYTES / _least_seconds(content.sum, device)


@torch.inference_mode()
def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of torch's product."""
    rows, width = ROWS[device.type], WIDTH[device.type]
    weight = torch.full((width, width), 0.5, dtype=dtype, device=device)
    x = torch.full((rows, width), 0.5, dtype=dtype, device=device)
    return 2 * rows * width * width / _least_seconds(lambda: torch.nn.functional.linear(x, weight), device)


def _least_seconds(work: Callable[[], object], device: torch.device) -> float:
    """The shortest of the repetitions that fit into a moment; the first, which may prepare things, does not count."""

    def runs() -> Iterator[float]:
        end = time.perf_counter() + TRY_SECONDS
        while time.perf_counter() < end:
            began = time.perf_counter()
            work()
            _settle(device)
            yield time.perf_counter() - began

    work()
    _settle(device)
    return min(runs())


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
