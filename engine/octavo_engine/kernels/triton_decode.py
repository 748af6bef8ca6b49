"""Paged decode attention for CUDA in Triton, split over the context; prompts' chunks take torch's path.

One program computes all query heads that share a key/value head, over one stretch of one sequence's context, so each
key is read once. A second kernel merges the stretches by their softmax sums. Ideas: FlashAttention's running softmax
(https://arxiv.org/abs/2205.14135) and Flash-Decoding's split (https://pytorch.org/blog/flash-decoding/).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# (Triton gives a kernel's arguments their types when it is launched.)
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.attention import Attend, AttentionKernels, AttentionShape, StepLayout
from octavo_engine.kernels.torch_paged import chunk_parts, write_kv

TILE = 64  # keys a program reads at a time
MIN_ROWS = 16  # the smallest tile of a tensor core product; fewer heads are padded up to it
PROGRAMS_WANTED = 512  # enough to fill the device several times over
LOG2_E = 1.4426950408889634


@triton.jit(do_not_specialize=["window", "table_stride", "splits"])  # they change from step to step: compile once
def decode_split(  # noqa: PLR0917 - a kernel's arguments are positional
    query, key_cache, value_cache, block_tables, context_lens, partial, sums,
    scale_log2, window, tokens_per_split, table_stride, splits,
    query_stride_s, query_stride_h,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Attention of one (sequence, kv head, split): its normalized output, and log2 of the sum of its weights.

    Cache offsets are 64 bit: a pool of more than 2**31 elements is ordinary.
    """
    sequence, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(context_lens + sequence)
    first = tl.maximum(length - window, 0)
    begin = first + split * tokens_per_split
    end = tl.minimum(begin + tokens_per_split, length)

    rows, dims, keys = tl.arange(0, ROWS), tl.arange(0, DIM_PADDED), tl.arange(0, TILE)
    heads = kv_head * GROUP + rows
    row_mask, dim_mask = rows < GROUP, dims < DIM
    q = tl.load(
        query + sequence * query_stride_s + heads[:, None] * query_stride_h + dims[None, :],
        mask=row_mask[:, None] & dim_mask[None, :],
        other=0.0,
    )
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    output = tl.zeros((ROWS, DIM_PADDED), tl.float32)

    for start in range(begin, end, TILE):
        position = start + keys
        inside = position < end
        block = tl.load(block_tables + sequence * table_stride + position // BLOCK_SIZE, mask=inside, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        offset = (slot * KV_HEADS + kv_head)[:, None] * DIM + dims[None, :]
        readable = inside[:, None] & dim_mask[None, :]
        k = tl.load(key_cache + offset, mask=readable, other=0.0)
        v = tl.load(value_cache + offset, mask=readable, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        correction = tl.exp2(largest - new_largest)
        weights = tl.exp2(scores - new_largest[:, None])
        total = total * correction + tl.sum(weights, 1)
        output = output * correction[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        largest = new_largest

    place = (sequence * KV_HEADS * GROUP + heads) * splits + split
    seen = total > 0.0  # a split past the sequence's end saw nothing, and weighs nothing
    normalized = output / tl.where(seen, total, 1.0)[:, None]
    tl.store(partial + place[:, None] * DIM + dims[None, :], normalized, mask=row_mask[:, None] & dim_mask[None, :])
    tl.store(sums + place, tl.where(seen, largest + tl.log2(tl.where(seen, total, 1.0)), float("-inf")), mask=row_mask)


@triton.jit(do_not_specialize=["splits"])
def decode_merge(  # noqa: PLR0917
    partial, sums, output,
    output_stride_s, output_stride_h, splits,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, SPLITS_PADDED: tl.constexpr,
):  # fmt: skip
    """Weigh the splits of one (sequence, head) by their sums."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    split, dims = tl.arange(0, SPLITS_PADDED), tl.arange(0, DIM_PADDED)
    place = (sequence * HEADS + head) * splits + split
    logs = tl.load(sums + place, mask=split < splits, other=float("-inf"))
    weights = tl.exp2(logs - tl.max(logs, 0))
    readable = (split < splits)[:, None] & (dims < DIM)[None, :]
    parts = tl.load(partial + place[:, None] * DIM + dims[None, :], mask=readable, other=0.0)
    merged = tl.sum(parts * weights[:, None], 0) / tl.sum(weights, 0)
    target = output + sequence * output_stride_s + head * output_stride_h + dims
    tl.store(target, merged.to(output.dtype.element_ty), mask=dims < DIM)


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """How a batch of decodes is spread over programs."""

    sequences: int
    splits: int
    tokens_per_split: int

    @classmethod
    def of(cls, sequences: int, kv_heads: int, context: int) -> DecodePlan:
        """Split long contexts until about PROGRAMS_WANTED programs are busy; a split is a whole number of tiles."""
        wanted = max(1, PROGRAMS_WANTED // max(1, sequences * kv_heads))
        tiles = max(1, -(-context // TILE))
        tiles_per_split = -(-tiles // min(wanted, tiles))
        return cls(sequences, -(-tiles // tiles_per_split), tiles_per_split * TILE)


def constants(shape: AttentionShape, group: int) -> Mapping[str, int]:
    """The compile-time arguments of `decode_split`."""
    return {
        "KV_HEADS": shape.kv_heads,
        "GROUP": group,
        "ROWS": max(MIN_ROWS, triton.next_power_of_2(group)),
        "DIM": shape.head_dim,
        "DIM_PADDED": triton.next_power_of_2(shape.head_dim),
        "BLOCK_SIZE": shape.block_size,
        "TILE": TILE,
    }


def decode(
    query: Tensor, caches: tuple[Tensor, Tensor], layout: StepLayout, shape: AttentionShape, output: Tensor
) -> None:
    """Attention of the step's decodes: query `[num_decodes, heads, dim]` -> `output`, the same shape."""
    sequences, heads, dim = query.shape
    window = shape.sliding_window or layout.max_context
    plan = DecodePlan.of(sequences, shape.kv_heads, min(layout.max_context, window))
    partial = torch.empty((sequences, heads, plan.splits, dim), dtype=torch.float32, device=query.device)
    sums = torch.empty((sequences, heads, plan.splits), dtype=torch.float32, device=query.device)
    fixed = constants(shape, heads // shape.kv_heads)
    decode_split[(sequences, shape.kv_heads, plan.splits)](
        query, *caches, layout.block_tables, layout.context_lens, partial, sums,
        shape.scale * LOG2_E, window, plan.tokens_per_split, layout.block_tables.stride(0), plan.splits,
        query.stride(0), query.stride(1), **fixed, **launch_options(shape),
    )  # fmt: skip
    decode_merge[(sequences, heads)](
        partial, sums, output, output.stride(0), output.stride(1), plan.splits,
        HEADS=heads, DIM=dim, DIM_PADDED=fixed["DIM_PADDED"],
        SPLITS_PADDED=triton.next_power_of_2(plan.splits),
    )  # fmt: skip


def launch_options(shape: AttentionShape) -> Mapping[str, int]:
    """Warps and pipeline stages: wide heads get more registers and fewer tiles in flight."""
    wide = shape.head_dim * shape.dtype.itemsize > 256
    return {"num_warps": 8 if wide else 4, "num_stages": 1 if wide else 2}


def prepare(layout: StepLayout, shape: AttentionShape) -> Attend:
    """Decodes by the Triton kernel, chunks by torch."""
    chunks = list(chunk_parts(layout, shape))

    def attend(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        decodes = slice(0, layout.num_decodes)
        if layout.num_decodes:
            decode(query[decodes], (key_cache, value_cache), layout, shape, output[decodes])
        for chunk in chunks:
            output[chunk.tokens] = chunk.attend(query[chunk.tokens], key_cache, value_cache)
        return output

    return attend


KERNELS = AttentionKernels("triton", write_kv, prepare)
