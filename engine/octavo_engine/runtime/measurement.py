"""What the device under an engine can do at best: from the makers' table, from the cache, or measured in a moment.

A quick look, not a benchmark: the best of some repetitions of one read and of one product. It is kept in the user's
cache, and a later measurement replaces it only by better figures, since a busy machine measures too little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from octavo_engine import machine_cache
from octavo_engine.devices import by_driver_name
from octavo_engine.kernels.linear import PLAIN, choose_linear
from octavo_engine.roofline import Machine

READ_BYTES = 128 * 1024**2  # beyond every cache near a core, and touched in a twentieth of a second
ROWS, WIDTH = {"cpu": 512, "cuda": 4096}, {"cpu": 2048, "cuda": 4096}
TRY_SECONDS = 0.04
CPUINFO = Path("/proc/cpuinfo")


def machine_of(device: torch.device, dtype: torch.dtype, *, anew: bool = False) -> Machine:
    """The figures of `device` for products of `dtype`; `anew` measures even if the cache has them."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    if known := by_driver_name(name):
        return known.machine(dtype.itemsize)
    threads = "" if device.type == "cuda" else f", {torch.get_num_threads()} threads"
    key = f"{name}{threads}, {str(dtype).removeprefix('torch.')}"
    cached = machine_cache.load().get(key)
    if cached is not None and not anew:
        return cached
    return machine_cache.keep(key, measure(f"{name}{threads}", device, dtype))


def processor(cpuinfo: Path = CPUINFO) -> str:
    """What this machine's processor calls itself."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "cpu")


def measure(name: str, device: torch.device, dtype: torch.dtype) -> Machine:
    """Read once through a large tensor, and multiply, each a few times; about a fifth of a second."""
    return Machine(name=name, bandwidth=_read_rate(device), flops=_product_rate(device, dtype))


@torch.inference_mode()
def _read_rate(device: torch.device) -> float:
    """Bytes a second of the fastest plain read: a sum."""
    content = torch.full((READ_BYTES // 4,), 0.5, dtype=torch.float32, device=device)
    return READ_BYTES / _least_seconds(content.sum, device)


@torch.inference_mode()
def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of the fastest product there is: torch's or the engine's own."""
    rows, width = ROWS[device.type], WIDTH[device.type]
    weight = torch.full((width, width), 0.5, dtype=dtype, device=device)
    x = torch.full((rows, width), 0.5, dtype=dtype, device=device)
    kernels = {kernel.name: kernel for kernel in (PLAIN, choose_linear(dtype, device))}
    products = [kernel.projection(weight, None) for kernel in kernels.values()]
    return 2 * rows * width * width / min(_least_seconds(lambda p=p: p(x), device) for p in products)  # type: ignore[misc]


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
