"""Loads the compiled kernels once, and declares what each of them takes. Without them, torch's own operations serve."""

from __future__ import annotations

import ctypes
import logging
import subprocess
from ctypes import c_float, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch

from octavo_engine.kernels.cpu.build import FEATURES, BuildFailed, built

log = logging.getLogger(__name__)

SUFFIXES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
SIGNATURES: dict[str, tuple[type, ...]] = {}
for _suffix in SUFFIXES.values():
    # weight, x, stride, rows, residual, out, wide_out, threads
    SIGNATURES[f"octavo_linear_{_suffix}"] = (*[c_void_p] * 2, *[c_int64] * 2, *[c_void_p] * 3, c_int)
    # x, weight, out, rows, width, eps, threads
    SIGNATURES[f"octavo_rms_norm_{_suffix}"] = (*[c_void_p] * 3, c_int64, c_int64, c_float, c_int)
    # step, heads, query_norm, key_norm, keys, values, threads
    SIGNATURES[f"octavo_store_heads_{_suffix}"] = (*[c_void_p] * 6, c_int)
    # step, query, stride, keys, values, out, threads
    SIGNATURES[f"octavo_attend_{_suffix}"] = (c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int)


@cache
def load() -> ctypes.CDLL | None:
    """The kernels, compiled at the first call if need be; None, and a line in the log, where they cannot run."""
    missing = missing_features()
    if missing:
        log.info("CPU kernels are off: this processor lacks %s; torch's own operations serve", ", ".join(missing))
        return None
    try:
        library = ctypes.CDLL(str(built()))
    except (BuildFailed, OSError, subprocess.TimeoutExpired) as error:
        log.warning("CPU kernels are off, and decoding takes about twice as long: %s", error)
        return None
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    return library


def kernels() -> ctypes.CDLL:
    """The kernels, where `load` has found them."""
    library = load()
    assert library is not None, "ask load() before choosing these kernels"
    return library


def missing_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """What the kernels need and this processor does not have."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return list(FEATURES)
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return [name for name in FEATURES if name not in flags]


def address(tensor: torch.Tensor | None) -> int | None:
    """Where a tensor's numbers begin; None stays a null pointer."""
    return None if tensor is None else tensor.data_ptr()
