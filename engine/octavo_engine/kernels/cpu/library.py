"""Loads the compiled kernels once, and declares what each of them takes. Without them, torch's own operations serve."""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
from ctypes import c_float, c_int, c_int64, c_void_p
from functools import cache

import torch

from octavo_engine.config import read_cpu_kernels
from octavo_engine.kernels.cpu.build import BuildFailed, built
from octavo_engine.kernels.cpu.targets import choose, features

log = logging.getLogger(__name__)

SUFFIXES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
SIGNATURES: dict[str, tuple[type, ...]] = {}
for _suffix in SUFFIXES.values():
    for _kind in ("linear", "quantized"):
        # weight, x, stride, rows, residual, out, wide_out, threads
        SIGNATURES[f"octavo_{_kind}_{_suffix}"] = (*[c_void_p] * 2, *[c_int64] * 2, *[c_void_p] * 3, c_int)
    for _kind in ("rows", "quantized_rows"):
        # weight, rows, count, out, threads
        SIGNATURES[f"octavo_{_kind}_{_suffix}"] = (*[c_void_p] * 2, c_int64, c_void_p, c_int)
    # x, weight, out, rows, width, eps, threads
    SIGNATURES[f"octavo_rms_norm_{_suffix}"] = (*[c_void_p] * 3, c_int64, c_int64, c_float, c_int)
    # step, heads, query_norm, key_norm, keys, values, threads
    SIGNATURES[f"octavo_store_heads_{_suffix}"] = (*[c_void_p] * 6, c_int)
    # step, query, stride, keys, values, out, threads
    SIGNATURES[f"octavo_attend_{_suffix}"] = (c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int)
    # step, threads
    SIGNATURES[f"octavo_layers_{_suffix}"] = (c_void_p, c_int)
    # rounds, threads, rate
    SIGNATURES[f"octavo_product_rate_{_suffix}"] = (c_int64, c_int, c_void_p)
# from, bytes, threads
SIGNATURES["octavo_read"] = (c_void_p, c_int64, c_int)


@cache
def load() -> ctypes.CDLL | None:
    """The kernels for this processor, compiled at the first call if need be; None, and a line in the log, without them.

    Raises InvalidConfiguration when OCTAVO_CPU_KERNELS asks for what cannot run here.
    """
    target = choose(read_cpu_kernels(os.environ), features())
    if target is None:
        log.info("CPU kernels are off, as OCTAVO_CPU_KERNELS says: torch's own operations serve")
        return None
    try:
        library = ctypes.CDLL(str(built(target)))
    except (BuildFailed, OSError, subprocess.TimeoutExpired) as error:
        log.warning(
            "CPU kernels are off: %s. torch's own operations serve instead: the same answers, but decoding takes about"
            " twice as long, and float32 is summed less exactly",
            error,
        )
        return None
    log.info("CPU kernels: %s", target.name)
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


def kernels() -> ctypes.CDLL:
    """The kernels, where `load` has found them."""
    library = load()
    assert library is not None, "ask load() before choosing these kernels"
    return library


def lanes() -> int:
    """Numbers in one vector of the kernels: half a panel of a packed weight."""
    count: int = kernels().octavo_lanes()
    return count


def address(tensor: torch.Tensor | None) -> int | None:
    """Where a tensor's numbers begin; None stays a null pointer."""
    return None if tensor is None else tensor.data_ptr()
