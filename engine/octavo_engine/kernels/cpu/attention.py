"""Paged attention in C++ (`native/attention.cpp`), in bfloat16 and float32: decodes and chunks of prompts alike.

Scores, softmax and sums are float32. What a query gets does not depend on the rest of its step: its sums have one
order, by position in its sequence.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p

import torch
from torch import Tensor

from octavo_engine.kernels import torch_paged
from octavo_engine.kernels.attention import Attend, AttentionKernels, AttentionShape, StepLayout
from octavo_engine.kernels.cpu.cache_form import write_kv
from octavo_engine.kernels.cpu.library import SUFFIXES, kernels


class AttentionStep(ctypes.Structure):
    """The kernel's view of a step; the same fields as in `native/attention.h`."""

    _fields_ = (
        ("tables", c_void_p),
        ("lengths", c_void_p),
        ("starts", c_void_p),
        ("table_stride", c_int64),
        ("sequences", c_int64),
        ("block_size", c_int64),
        ("query_heads", c_int64),
        ("kv_heads", c_int64),
        ("dim", c_int64),
        ("window", c_int64),
        ("scale", c_float),
    )


def describe(layout: StepLayout, shape: AttentionShape) -> AttentionStep:
    """The step, but for the number of query heads, which a query tells. Points into the layout's memory."""
    return AttentionStep(
        tables=layout.block_tables.data_ptr(),
        lengths=layout.context_lens.data_ptr(),
        starts=layout.query_start.data_ptr(),
        table_stride=layout.block_tables.stride(0),
        sequences=len(layout.context_lens),
        block_size=shape.block_size,
        kv_heads=shape.kv_heads,
        dim=shape.head_dim,
        window=layout.max_context if shape.sliding_window is None else shape.sliding_window,
        scale=shape.scale,
    )


def prepare(layout: StepLayout, shape: AttentionShape) -> Attend:
    """One call a layer; another type than the kernel's two entirely by torch."""
    if shape.dtype not in SUFFIXES:
        return torch_paged.prepare(layout, shape)
    step = describe(layout, shape)
    pointer, threads = ctypes.addressof(step), torch.get_num_threads()
    call = getattr(kernels(), f"octavo_attend_{SUFFIXES[shape.dtype]}")
    tensors = (layout.block_tables, layout.context_lens, layout.query_start)  # the step points to their memory

    def attend(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        assert len(tensors[2]) == step.sequences + 1
        step.query_heads = query.shape[1]
        output = torch.empty(query.shape, dtype=query.dtype)
        caches = key_cache.data_ptr(), value_cache.data_ptr()
        call(pointer, query.data_ptr(), query.stride(0), *caches, output.data_ptr(), threads)
        return output

    return attend


KERNELS = AttentionKernels("cpu", write_kv, prepare)
