"""Paged attention in torch: a few large operations a layer instead of a loop over sequences.

A step becomes *segments*: groups of sequences that are computed together by one call of scaled dot product attention over
keys and values gathered from the cache. Decodes of similar length share a segment; a chunk of a prompt is a segment of its
own. The gather's index and the mask depend on the layout only, so they are made once a step and serve every layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.kernels.attention import Attend, AttentionKernels, AttentionShape, StepLayout

PADDING_LIMIT = 2  # decodes share a segment while the longest has at most this many times the shortest's context


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Store each token's key and value `[tokens, kv_heads, dim]` at its slot."""
    key_cache.flatten(0, 1).index_copy_(0, slots, key)
    value_cache.flatten(0, 1).index_copy_(0, slots, value)


@dataclass(slots=True)
class Segment:
    """Sequences computed together: `sequences` of them, `queries` tokens each, over `context` cache entries each."""

    tokens: slice | Tensor  # which of the step's tokens
    sequences: int
    queries: int
    context: int
    gather: Tensor  # int64 [sequences * context] cache slots; a padded entry repeats a slot of the same sequence
    mask: Tensor | None  # bool, broadcastable to [sequences, kv_heads, rows, context]; None: everything is visible
    causal: bool = False  # the queries are the whole context, so the plain triangle masks
    buffers: list[Tensor] = field(default_factory=list)  # gathered keys and values, reused by every layer

    def read(self, key_cache: Tensor, value_cache: Tensor) -> list[Tensor]:
        """Keys and values as `[sequences, kv_heads, context, dim]` views of buffers that the next layer overwrites."""
        if not self.buffers:
            self.buffers = [cache.new_empty(len(self.gather), *cache.shape[2:]) for cache in (key_cache, value_cache)]
        for cache, buffer in zip((key_cache, value_cache), self.buffers, strict=True):
            torch.index_select(cache.flatten(0, 1), 0, self.gather, out=buffer)
        return [buffer.unflatten(0, (self.sequences, self.context)).transpose(1, 2) for buffer in self.buffers]

    def attend(self, query: Tensor, key_cache: Tensor, value_cache: Tensor, scale: float) -> Tensor:
        """query `[sequences * queries, heads, dim]` -> the same shape."""
        key, value = self.read(key_cache, value_cache)
        if self.queries == 1:
            return self._attend_decodes(query, key, value, scale)
        return self._attend_chunk(query, key, value, scale)

    def _attend_decodes(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        # The heads that share a key/value head become that head's rows: nothing is expanded.
        rows = query.unflatten(1, (key.shape[1], -1))
        return F.scaled_dot_product_attention(rows, key, value, attn_mask=self.mask, scale=scale).flatten(1, 2)

    def _attend_chunk(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        # One sequence: key/value heads take the batch's place and are broadcast (stride 0) over the heads that share them.
        rows = query.unflatten(1, (key.shape[1], -1)).permute(1, 2, 0, 3)
        key, value = (part[0].unsqueeze(1).expand(-1, rows.shape[1], -1, -1) for part in (key, value))
        out = F.scaled_dot_product_attention(rows, key, value, attn_mask=self.mask, is_causal=self.causal, scale=scale)
        return out.permute(2, 0, 1, 3).flatten(1, 2)


def prepare(layout: StepLayout, shape: AttentionShape) -> Attend:
    """Cut the step into segments; the returned function is called once by each layer."""
    segments = [*_decode_segments(layout, shape), *_chunk_segments(layout, shape)]

    def attend(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        if len(segments) == 1:
            return segments[0].attend(query, key_cache, value_cache, shape.scale)
        output = torch.empty_like(query)
        for segment in segments:
            output[segment.tokens] = segment.attend(query[segment.tokens], key_cache, value_cache, shape.scale)
        return output

    return attend


def _decode_segments(layout: StepLayout, shape: AttentionShape) -> Iterator[Segment]:
    """Decodes, grouped so that padding at most doubles the work of any of them."""
    lengths: list[int] = layout.context_lens[: layout.num_decodes].tolist()
    seen = lengths if shape.sliding_window is None else [min(length, shape.sliding_window) for length in lengths]
    for group in group_by_length(seen):
        context = max(seen[index] for index in group)
        everyone = len(group) == len(lengths)
        rows = slice(0, len(group)) if everyone else torch.tensor(group, device=layout.slots.device)
        ends = layout.context_lens[rows].long()
        begins = ends - torch.tensor([seen[index] for index in group], device=ends.device)
        gather, valid = _gather_index(layout.block_tables[rows], begins, ends, context, shape.block_size)
        padded = any(seen[index] != context for index in group)
        yield Segment(rows, len(group), 1, context, gather, valid[:, None, None, :] if padded else None)


def group_by_length(lengths: list[int]) -> list[list[int]]:
    """Indices in groups whose longest is at most PADDING_LIMIT times the shortest; indices ascend within a group."""
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if not groups or lengths[index] * PADDING_LIMIT < longest:
            groups.append([])
            longest = lengths[index]
        groups[-1].append(index)
    return [sorted(group) for group in groups]


def _chunk_segments(layout: StepLayout, shape: AttentionShape) -> Iterator[Segment]:
    """One segment for each sequence that computes several tokens."""
    starts: list[int] = layout.query_start[layout.num_decodes :].tolist()
    lengths: list[int] = layout.context_lens[layout.num_decodes :].tolist()
    for offset, end in enumerate(lengths):
        queries = starts[offset + 1] - starts[offset]
        begin = 0 if shape.sliding_window is None else max(0, end - queries - shape.sliding_window + 1)
        table = layout.block_tables[layout.num_decodes + offset][None]
        bounds = torch.tensor([[begin], [end]], device=table.device)
        gather, _ = _gather_index(table, bounds[0], bounds[1], end - begin, shape.block_size)
        causal = begin == 0 and queries == end and (shape.sliding_window is None or shape.sliding_window >= end)
        mask = None if causal else _chunk_mask(queries, end - begin, shape.sliding_window, table.device)
        tokens = slice(starts[offset], starts[offset + 1])
        yield Segment(tokens, 1, queries, end - begin, gather, mask, causal)


def _gather_index(tables: Tensor, begins: Tensor, ends: Tensor, context: int, block_size: int) -> tuple[Tensor, Tensor]:
    """Slots of positions `[begin, begin + context)` of each sequence, and which of them are before its end.

    Positions past the end repeat the last one: foreign or never written memory is not read, so it cannot leak NaN.
    """
    positions = begins[:, None] + torch.arange(context, device=tables.device)
    valid = positions < ends[:, None]
    positions = torch.minimum(positions, ends[:, None] - 1)
    blocks = tables.gather(1, positions // block_size).long()
    return (blocks * block_size + positions % block_size).flatten(), valid


def _chunk_mask(queries: int, context: int, window: int | None, device: torch.device) -> Tensor:
    """bool [queries, context]: causal at the end of the context, and within the window."""
    visible = torch.ones(queries, context, dtype=torch.bool, device=device).tril(context - queries)
    return visible if window is None else visible.triu(context - queries - window + 1)


KERNELS = AttentionKernels("torch", write_kv, prepare)
