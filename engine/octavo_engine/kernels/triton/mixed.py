"""Attention of chunks of prompts, and of the decodes beside them, in one launch whatever their lengths.

The tokens of a step are cut into tiles of queries, none of which holds two sequences. A program computes all heads
that share a key head for one tile: its rows are (token, head) pairs. No table says which tile is whose: sequence `s`
has its first tile at `query_start[s] // tokens + s`, with room for as many as it can have, so that a program finds its
sequence by a binary search, and the launch needs to know nothing of a length that lies on the device.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.attention import AttentionShape, StepLayout
from octavo_engine.kernels.triton.common import (
    LOG2_E,
    attend_stretch,
    padded,
    padded_dim,
    scales_of,
    store_rows,
    table_name,
)
from octavo_engine.kernels.triton.merge import Grid, LeftBehind
from octavo_engine.kernels.triton.splits import Pieces, cut_chunks
from octavo_engine.kernels.triton.targets import Target, launch_on

SHORTEST_PIECE = 512  # tokens: what a tile of many queries reads in about the time that merging takes


@triton.jit(do_not_specialize=["window", "piece_tokens", "pieces", "table_stride", "skipped", "sequences"])
def mixed(  # noqa: PLR0917 - a kernel's arguments are positional
    query, key_cache, value_cache, block_tables, context_lens, query_start, output, partial, piece_sums,
    scale_log2, value_scale, window, piece_tokens, pieces, table_stride, skipped, sequences,
    query_stride_t, query_stride_h, output_stride_t, output_stride_h,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Attention of one (tile of queries, key head, piece).

    The first `skipped` sequences, of one token each, are left to others. Later tiles of a prompt see more and start
    first, so that no long one is waited for at the end.
    """
    TOKENS: tl.constexpr = ROWS // GROUP
    kv_head = tl.program_id(0) % KV_HEADS
    tile = tl.num_programs(0) // KV_HEADS - 1 - tl.program_id(0) // KV_HEADS
    piece = tl.program_id(1)
    sequence = _sequence_of(tile, query_start, skipped, sequences, TOKENS)
    first_token = tl.load(query_start + sequence)
    tokens = tl.load(query_start + sequence + 1) - first_token
    length = tl.load(context_lens + sequence)
    within = (tile - (first_token - skipped) // TOKENS - (sequence - skipped)) * TOKENS  # of the sequence's new tokens
    count = tl.minimum(tokens - within, TOKENS)  # of the tile; none or less in a tile that was room only

    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM_PADDED)
    row_valid = rows // GROUP < count
    head = kv_head * GROUP + rows % GROUP
    token = first_token + within + rows // GROUP
    place = token.to(tl.int64) * query_stride_t + head * query_stride_h
    q = tl.load(query + place[:, None] + dims[None, :], mask=row_valid[:, None] & (dims < DIM)[None, :], other=0.0)

    position = length - tokens + within  # of the tile's first token
    own = position + rows // GROUP
    first_seen = own - window + 1
    stop = tl.where(count > 0, position + count, 0)
    begin = tl.maximum(position - window + 1, 0) + piece * piece_tokens
    end = tl.minimum(begin + piece_tokens, stop)
    # All rows see what the first one sees, unless the last one's window has moved past the stretch's beginning.
    seen_by_all = tl.where(stop - window <= begin, position + 1, begin)
    outputs, sums, saw = attend_stretch(
        q, key_cache, value_cache, block_tables + sequence.to(tl.int64) * table_stride, begin, end, seen_by_all,
        first_seen, own, kv_head, scale_log2, value_scale, KV_HEADS, DIM, DIM_PADDED, BLOCK_SIZE, ROWS, TILE,
    )  # fmt: skip
    store_rows(
        outputs, sums, saw, output, partial, piece_sums, row_valid, own < piece_tokens, token, head, piece, pieces,
        output_stride_t, output_stride_h, KV_HEADS * GROUP, DIM, DIM_PADDED, WHOLE,
    )  # fmt: skip


@triton.jit
def _sequence_of(tile, query_start, skipped, sequences, TOKENS: tl.constexpr):
    """The last sequence whose first tile is not after `tile`."""
    low, high = skipped, sequences - 1
    while low < high:
        middle = (low + high + 1) // 2
        start = (tl.load(query_start + middle) - skipped) // TOKENS + middle - skipped
        low = tl.where(start <= tile, middle, low)
        high = tl.where(start <= tile, high, middle - 1)
    return low


@dataclass(frozen=True, slots=True)
class Mixed:
    """The sequences of a step after the first `skipped`, as every layer computes them."""

    layout: StepLayout
    shape: AttentionShape
    target: Target
    skipped: int
    window: int  # tokens that are seen, at most

    @classmethod
    def of(cls, layout: StepLayout, shape: AttentionShape, target: Target, *, skipped: int) -> Self:
        """skipped: of the step's decodes, none or all."""
        return cls(layout, shape, target, skipped, shape.sliding_window or layout.max_context)

    def attend(self, query: Tensor, key_cache: Tensor, value_cache: Tensor, output: Tensor) -> None:
        """query `[tokens, heads, dim]` -> `output`, the same shape, of which all but the skipped rows are written."""
        layout, shape, heads = self.layout, self.shape, query.shape[1]
        scales = scales_of(shape, key_cache)
        launch = launch_on(self.target, table_name("mixed", query, key_cache), padded_dim(shape.head_dim))
        group = heads // shape.kv_heads
        rows = max(launch.blocks["ROWS"], padded(group))
        sequences = len(layout.context_lens)
        tiles = (len(query) - self.skipped) // (rows // group) + sequences - self.skipped
        pieces = self._pieces(tiles * shape.kv_heads, launch.blocks["TILE"])
        left = LeftBehind.room_for(Grid(pieces.count, pieces.tokens), output)
        mixed[(tiles * shape.kv_heads, pieces.count)](
            query, key_cache, value_cache, layout.block_tables, layout.context_lens, layout.query_start, output,
            left.partial, left.sums,
            shape.scale * scales.key * LOG2_E, scales.value,
            self.window, pieces.tokens, pieces.count, layout.block_tables.stride(0),
            self.skipped, sequences,
            query.stride(0), query.stride(1), output.stride(0), output.stride(1),
            KV_HEADS=shape.kv_heads, GROUP=group, DIM=shape.head_dim, DIM_PADDED=padded_dim(shape.head_dim),
            BLOCK_SIZE=shape.block_size, WHOLE=pieces.count == 1, **launch.arguments | {"ROWS": rows},
        )  # fmt: skip
        left.merge_into(output, layout.positions, self.window, self.skipped)

    def _pieces(self, units: int, tile: int) -> Pieces:
        """Contexts within a window are not cut: a piece would begin elsewhere for each tile of queries."""
        context = self.layout.max_context
        if self.window < context:
            return Pieces(1, context)
        return cut_chunks(
            context=context, units=units, processors=self.target.processors, least=SHORTEST_PIECE, tile=tile
        )
