"""Decodes over the paged cache in C++ (`native/attention.cpp`), in bfloat16 and float32; prompts take torch's path.

Scores, softmax and sums are float32 throughout.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p

import torch
from torch import Tensor

from octavo_engine.kernels import torch_paged
from octavo_engine.kernels.attention import Attend, AttentionKernels, AttentionShape, StepLayout
from octavo_engine.kernels.cpu.library import SUFFIXES, kernels


class Decodes(ctypes.Structure):
    """The kernel's view of a step's decodes; the same fields as in `native/attention.cpp`."""

    _fields_ = (
        ("tables", c_void_p),
        ("lengths", c_void_p),
        ("table_stride", c_int64),
        ("sequences", c_int64),
        ("block_size", c_int64),
        ("query_heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("window", c_int64),
        ("scale", c_float),
    )


def describe(layout: StepLayout, shape: AttentionShape) -> Decodes:
    """The step's decodes, but for the number of query heads, which a query tells. Points into the layout's memory."""
    return Decodes(
        tables=layout.block_tables.data_ptr(),
        lengths=layout.context_lens.data_ptr(),
        table_stride=layout.block_tables.stride(0),
        sequences=layout.num_decodes,
        block_size=shape.block_size,
        kv_heads=shape.kv_heads,
        dim=shape.head_dim,
        window=layout.max_context if shape.sliding_window is None else shape.sliding_window,
        scale=shape.scale,
    )


def prepare(layout: StepLayout, shape: AttentionShape) -> Attend:
    """Decodes by the kernel, chunks by torch; another type than the kernel's two entirely by torch."""
    if shape.dtype not in SUFFIXES:
        return torch_paged.prepare(layout, shape)
    chunks = list(torch_paged.chunk_parts(layout, shape))
    step = describe(layout, shape)
    pointer, threads = ctypes.addressof(step), torch.get_num_threads()
    decode = getattr(kernels(), f"octavo_decode_{SUFFIXES[shape.dtype]}")

    def attend(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        output = torch.empty(query.shape, dtype=query.dtype)
        if layout.num_decodes:  # `attend` keeps the layout, and so the memory that the step points to
            step.query_heads = query.shape[1]
            caches = key_cache.data_ptr(), value_cache.data_ptr()
            decode(pointer, query.data_ptr(), query.stride(0), *caches, output.data_ptr(), threads)
        for chunk in chunks:
            output[chunk.tokens] = chunk.attend(query[chunk.tokens], key_cache, value_cache)
        return output

    return attend


KERNELS = AttentionKernels("cpu", torch_paged.write_kv, prepare)
