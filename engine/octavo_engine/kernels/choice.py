"""Which set of kernels computes what on which device: the only place that knows them all. Each is imported on demand.

Neither Triton nor the CPU's library is there on every machine.
"""

from __future__ import annotations

import importlib
import logging

import torch

from octavo_engine.kernels import linear, pointwise
from octavo_engine.kernels.attention import AttentionKernels, Backend
from octavo_engine.kernels.linear import LinearKernels
from octavo_engine.kernels.pointwise import PointwiseKernels

log = logging.getLogger(__name__)

ATTENTION = {
    "reference": "torch_reference",
    "torch": "torch_paged",
    "cpu": "cpu.attention",
    "triton": "triton.attention",
}


def choose_attention(backend: Backend) -> AttentionKernels:
    """The kernels of that name."""
    kernels: AttentionKernels = importlib.import_module(f"octavo_engine.kernels.{ATTENTION[backend]}").KERNELS
    return kernels


def choose_linear(dtype: torch.dtype, device: torch.device) -> LinearKernels:
    """The fastest set for weights of that type on that device.

    On a CPU our own for bfloat16 and float32 where they run, else for bfloat16 oneDNN's packed ones; on CUDA torch's
    with our own around them.
    """
    if device.type == "cuda":
        from octavo_engine.kernels.triton import linear as launched  # noqa: PLC0415
        from octavo_engine.kernels.triton.device import target_of  # noqa: PLC0415

        return launched.kernels_on(target_of(device))
    if dtype not in (torch.bfloat16, torch.float32):
        log.warning(
            "on a processor, %s is left to torch's own operations: --dtype bfloat16 is several times faster", dtype
        )
        return linear.PLAIN
    from octavo_engine.kernels import onednn_linear  # noqa: PLC0415
    from octavo_engine.kernels.cpu import library  # noqa: PLC0415
    from octavo_engine.kernels.cpu import linear as packed  # noqa: PLC0415

    if library.load() is not None:
        return packed.KERNELS
    return onednn_linear.KERNELS if dtype == torch.bfloat16 and onednn_linear.available() else linear.PLAIN


def choose_pointwise(dtype: torch.dtype, device: torch.device, attention: AttentionKernels) -> PointwiseKernels:
    """The fastest set for numbers of that type on that device.

    attention: which kernels read the cache. The compiled ones have their own order of numbers within a block, so those
    of their kind store for them, and plain ones for others.
    """
    if device.type == "cuda":
        from octavo_engine.kernels.triton import pointwise as launched  # noqa: PLC0415
        from octavo_engine.kernels.triton.device import target_of  # noqa: PLC0415

        return launched.Pointwise(target_of(device)).kernels
    if dtype not in {torch.bfloat16, torch.float32}:
        return pointwise.PLAIN
    from octavo_engine.kernels.cpu import library  # noqa: PLC0415
    from octavo_engine.kernels.cpu import pointwise as fused  # noqa: PLC0415

    if library.load() is None:
        return pointwise.PLAIN
    if attention.name == "cpu":
        return fused.KERNELS
    return PointwiseKernels("mixed", fused.rms_norm, pointwise.prepare_store)
