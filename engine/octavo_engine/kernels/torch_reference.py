"""The definition of correct: attention as the paper writes it, a sequence at a time, in float32 at least."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_engine.kernels.attention import Attend, AttentionKernels, AttentionShape, StepLayout
from octavo_engine.kernels.stored import EIGHT_BITS, bits, put


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Store each token's key and value `[tokens, kv_heads, dim]` at its slot."""
    put(key_cache, slots, key)
    put(value_cache, slots, value)


def read_sequence(cache: Tensor, block_table: Tensor, length: int) -> Tensor:
    """The first `length` entries of a sequence, `[length, kv_heads, dim]`."""
    num_blocks = -(-length // cache.shape[1])
    return bits(cache)[block_table[:num_blocks].long()].view(cache.dtype).flatten(0, 1)[:length]


def widened(stored: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Cached numbers in a wide type, as they were before they were stored, but for what rounding took."""
    return stored.to(dtype) * scale if stored.dtype in EIGHT_BITS else stored.to(dtype)


def attend_sequence(query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
    """Causal attention of the last tokens of one sequence.

    query `[queries, heads, dim]`, key and value `[length, kv_heads, dim]`; query i is token `length - queries + i`.
    """
    queries, heads, _ = query.shape
    length, kv_heads, _ = key.shape
    wide = torch.promote_types(query.dtype, torch.float32)
    key, value = (
        widened(part, wide, scale).repeat_interleave(heads // kv_heads, dim=1)
        for part, scale in zip((key, value), shape.scales, strict=True)
    )
    scores = torch.einsum("qhd,khd->hqk", query.to(wide), key) * shape.scale
    distance = torch.arange(length - queries, length)[:, None] - torch.arange(length)[None, :]
    visible = distance >= 0
    if shape.sliding_window is not None:
        visible &= distance < shape.sliding_window
    scores.masked_fill_(~visible.to(scores.device), float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), value).to(query.dtype)


def prepare(layout: StepLayout, shape: AttentionShape) -> Attend:
    """Bind the layout; nothing is computed ahead."""
    starts, lengths = layout.query_start.tolist(), layout.context_lens.tolist()

    def attend(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        output = torch.empty_like(query)
        for index, length in enumerate(lengths):
            tokens = slice(starts[index], starts[index + 1])
            key, value = (
                read_sequence(cache, layout.block_tables[index], length) for cache in (key_cache, value_cache)
            )
            output[tokens] = attend_sequence(query[tokens], key, value, shape)
        return output

    return attend


KERNELS = AttentionKernels("reference", write_kv, prepare)
