"""RMSNorm, and the heads' way through their rotation into the cache, one call each (`native/pointwise.cpp`)."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p

import torch
from torch import Tensor

from octavo_engine.kernels.attention import UNSCALED, CacheScales
from octavo_engine.kernels.cpu.library import SUFFIXES, address, kernels
from octavo_engine.kernels.pointwise import HeadNorms, PointwiseKernels, StoreHeads


class HeadsOfStep(ctypes.Structure):
    """The kernel's view of a step; the same fields as in `native/pointwise.cpp`."""

    _fields_ = (
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("slots", c_void_p),
        ("tokens", c_int64),
        ("query_heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("block_size", c_int64),
        ("eps", c_float),
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The fast twin of `pointwise.rms_norm`, for contiguous `[rows, width]`."""
    out, (rows, width) = torch.empty_like(x), x.shape
    norm = getattr(kernels(), f"octavo_rms_norm_{SUFFIXES[x.dtype]}")
    norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, width, eps, torch.get_num_threads())
    return out


def prepare_store(cos: Tensor, sin: Tensor, slots: Tensor) -> StoreHeads:
    """Turns and stores as `pointwise.prepare_store` does, into a cache that lies as `cache_form` says; the heads are
    overwritten."""
    threads, dim = torch.get_num_threads(), cos.shape[-1]
    step = HeadsOfStep(cos.data_ptr(), sin.data_ptr(), slots.data_ptr(), len(slots), dim=dim)
    pointer, store = ctypes.addressof(step), getattr(kernels(), f"octavo_store_heads_{SUFFIXES[cos.dtype]}")
    tensors = (cos, sin, slots)  # what the step points to must live as long as it

    def store_heads(
        heads: Tensor, norms: HeadNorms | None, cache: tuple[Tensor, Tensor], _of_8_bits: CacheScales = UNSCALED
    ) -> Tensor:
        assert len(heads) == len(tensors[2])
        _, step.block_size, step.kv_heads, _ = cache[0].shape
        step.query_heads = heads.shape[1] - 2 * step.kv_heads
        step.eps = 0.0 if norms is None else norms.eps
        weights = (None, None) if norms is None else (address(norms.query), address(norms.key))
        store(pointer, heads.data_ptr(), *weights, cache[0].data_ptr(), cache[1].data_ptr(), threads)
        return heads[:, : step.query_heads]

    return store_heads


KERNELS = PointwiseKernels("cpu", rms_norm, prepare_store)
