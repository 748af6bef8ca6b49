"""Paged attention in torch: a few large operations a layer instead of a loop over sequences.

A step becomes *groups* (decodes of similar length, computed by two batched products) and *chunks* (several tokens of
one prompt, computed by scaled dot product attention). Both gather their keys and values from the cache first.
Index, mask and scratch memory depend on the step only, so they are made once and serve every layer.

In bfloat16 a decode's scores are rounded to bfloat16 before the softmax, as transformers' eager attention rounds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from octavo_engine.kernels.attention import Attend, AttentionKernels, AttentionShape, StepLayout

PADDING_LIMIT = 2  # decodes share a group while the longest has at most this many times the shortest's context
GATHER_BYTES = 1 << 20  # keys gathered at once: they should still be in the core's cache when the product reads them


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Store each token's key and value `[tokens, kv_heads, dim]` at its slot."""
    key_cache.flatten(0, 1).index_copy_(0, slots, key)
    value_cache.flatten(0, 1).index_copy_(0, slots, value)


@dataclass(frozen=True, slots=True)
class Decodes:
    """Sequences with one query token each. Heads that share keys are the rows of one product: nothing is expanded."""

    tokens: slice | Tensor  # which of the step's tokens
    shape: AttentionShape
    rows: Tensor  # int64 [sequences * kv_heads * context], row of the cache seen as [slots * kv_heads, dim]
    bias: Tensor  # [sequences * kv_heads, 1, context], -inf where a shorter sequence is padded
    keys: Tensor  # [sequences * kv_heads, context, dim], scratch
    values: Tensor

    def attend(self, query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        """query `[sequences, heads, dim]` -> the same shape."""
        dim = query.shape[-1]
        torch.index_select(key_cache.view(-1, dim), 0, self.rows, out=self.keys.view(-1, dim))
        torch.index_select(value_cache.view(-1, dim), 0, self.rows, out=self.values.view(-1, dim))
        grouped = query.reshape(len(self.keys), -1, dim)
        scores = torch.baddbmm(self.bias, grouped, self.keys.mT, alpha=self.shape.scale)
        return torch.bmm(scores.softmax(-1), self.values).view(query.shape)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Several tokens of one sequence, at the end of its context."""

    tokens: slice
    shape: AttentionShape
    slots: Tensor  # int64 [context]
    bias: Tensor | None  # [queries, context], -inf where a query may not look; None: the queries are the whole context

    def attend(self, query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        """query `[queries, heads, dim]` -> the same shape."""
        # Key/value heads take the batch's place and are broadcast (stride 0) over the heads that share them.
        rows = query.view(len(query), self.shape.kv_heads, -1, self.shape.head_dim).permute(1, 2, 0, 3)
        key, value = (
            cache.flatten(0, 1)
            .index_select(0, self.slots)
            .transpose(0, 1)
            .unsqueeze(1)
            .expand(-1, rows.shape[1], -1, -1)
            for cache in (key_cache, value_cache)
        )
        out = F.scaled_dot_product_attention(
            rows, key, value, attn_mask=self.bias, is_causal=self.bias is None, scale=self.shape.scale
        )
        return out.permute(2, 0, 1, 3).flatten(1, 2)


def prepare(layout: StepLayout, shape: AttentionShape) -> Attend:
    """Cut the step into parts; the returned function is called once by each layer."""
    parts: list[Decodes | Chunk] = [*decode_parts(layout, shape), *chunk_parts(layout, shape)]
    if len(parts) == 1:
        return parts[0].attend

    def attend(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        output = torch.empty_like(query)
        for part in parts:
            output[part.tokens] = part.attend(query[part.tokens], key_cache, value_cache)
        return output

    return attend


def decode_parts(layout: StepLayout, shape: AttentionShape) -> Iterator[Decodes]:
    """The decodes, in groups that share one scratch memory: a layer computes them one after the other."""
    lengths: list[int] = layout.context_lens[: layout.num_decodes].tolist()
    seen = lengths if shape.sliding_window is None else [min(length, shape.sliding_window) for length in lengths]
    room = GATHER_BYTES // (shape.kv_heads * shape.head_dim * shape.dtype.itemsize)
    groups = group_by_length(seen, max(1, room))
    size = shape.kv_heads * max((padded_size(group, seen) for group in groups), default=0)
    scratch = torch.empty((2, size, shape.head_dim), dtype=shape.dtype, device=layout.slots.device)
    for group in groups:
        yield _decodes(layout, shape, scratch, group, seen)


def _decodes(layout: StepLayout, shape: AttentionShape, scratch: Tensor, group: list[int], seen: list[int]) -> Decodes:
    device, context = layout.slots.device, max(seen[index] for index in group)
    contiguous = group[-1] - group[0] + 1 == len(group)
    tokens = slice(group[0], group[-1] + 1) if contiguous else torch.tensor(group, device=device)
    ends = layout.context_lens[tokens].long()
    begins = ends - torch.tensor([seen[index] for index in group], device=device)
    slots, valid = gather_index(layout.block_tables[tokens], begins, ends, context, shape.block_size)
    heads = torch.arange(shape.kv_heads, device=device)[:, None]
    rows = (slots[:, None] * shape.kv_heads + heads).flatten()
    bias = as_bias(valid, shape.dtype)[:, None].expand(-1, shape.kv_heads, -1).reshape(-1, 1, context)
    keys, values = scratch[:, : len(rows)].view(2, -1, context, shape.head_dim).unbind()
    return Decodes(tokens, shape, rows, bias, keys, values)


def group_by_length(lengths: list[int], room: int) -> list[list[int]]:
    """Indices, ascending within a group, such that a group padded to its longest fits `room` (or is a single sequence)
    and its longest has at most PADDING_LIMIT times the shortest's length."""
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        full = not groups or longest * (len(groups[-1]) + 1) > room
        if full or lengths[index] * PADDING_LIMIT < longest:
            groups.append([])
            longest = lengths[index]
        groups[-1].append(index)
    return [sorted(group) for group in groups]


def padded_size(group: Iterable[int], lengths: list[int]) -> int:
    """Tokens of a group when each sequence is padded to the longest."""
    sizes = [lengths[index] for index in group]
    return len(sizes) * max(sizes)


def chunk_parts(layout: StepLayout, shape: AttentionShape) -> Iterator[Chunk]:
    """One part for each sequence after the decodes."""
    starts: list[int] = layout.query_start[layout.num_decodes :].tolist()
    lengths: list[int] = layout.context_lens[layout.num_decodes :].tolist()
    for offset, end in enumerate(lengths):
        queries = starts[offset + 1] - starts[offset]
        begin = 0 if shape.sliding_window is None else max(0, end - queries - shape.sliding_window + 1)
        row = slice(layout.num_decodes + offset, layout.num_decodes + offset + 1)
        ends = layout.context_lens[row].long()
        slots, _ = gather_index(
            layout.block_tables[row], torch.full_like(ends, begin), ends, end - begin, shape.block_size
        )
        plain = queries == end and (shape.sliding_window is None or shape.sliding_window >= end)
        bias = (
            None
            if plain
            else as_bias(chunk_mask(queries, end - begin, shape.sliding_window, slots.device), shape.dtype)
        )
        yield Chunk(slice(starts[offset], starts[offset + 1]), shape, slots[0], bias)


def gather_index(tables: Tensor, begins: Tensor, ends: Tensor, context: int, block_size: int) -> tuple[Tensor, Tensor]:
    """Slots `[sequences, context]` of positions `begin ...` of each sequence, and which of them are before its end.

    Positions past the end repeat the last one: foreign or never written memory is not read, so no NaN of it can show.
    """
    positions = begins[:, None] + torch.arange(context, device=tables.device)
    valid = positions < ends[:, None]
    positions = torch.minimum(positions, ends[:, None] - 1)
    blocks = tables.gather(1, positions // block_size).long()
    return blocks * block_size + positions % block_size, valid


def chunk_mask(queries: int, context: int, window: int | None, device: torch.device) -> Tensor:
    """bool [queries, context]: causal at the end of the context, and within the window."""
    visible = torch.ones(queries, context, dtype=torch.bool, device=device).tril(context - queries)
    return visible if window is None else visible.triu(context - queries - window + 1)


def as_bias(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where visible, -inf elsewhere: what is added to the scores."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


KERNELS = AttentionKernels("torch", write_kv, prepare)
