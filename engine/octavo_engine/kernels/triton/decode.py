"""Attention of decodes: one query token a sequence, so that what counts is reading keys and values once, at full speed.

One program computes all query heads that share a key head, over one piece of one sequence's context. The heads are rows
of one product, padded to the smallest that tensor cores take. Programs that read neighbouring memory run side by side.
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
    number,
    padded,
    padded_dim,
    scales_of,
    store_rows,
    table_name,
)
from octavo_engine.kernels.triton.merge import Grid, LeftBehind
from octavo_engine.kernels.triton.splits import DecodeCut
from octavo_engine.kernels.triton.targets import Target, launch_on


@triton.jit(do_not_specialize=["window", "piece_tokens", "pieces", "table_stride"])  # a step's: compile once
def decode(  # noqa: PLR0917 - a kernel's arguments are positional
    query, key_cache, value_cache, block_tables, context_lens, output, partial, piece_sums,
    scale_log2, value_scale, window, piece_tokens, pieces, table_stride,
    query_stride_t, query_stride_h, output_stride_t, output_stride_h,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WHOLE: tl.constexpr, RECORDED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Attention of one (sequence, key head, piece). WHOLE: no context is cut, and nothing is left for a merge.

    RECORDED: there are programs for more pieces than most steps have, and those without one leave at once.
    """
    kv_head, sequence = tl.program_id(0) % KV_HEADS, tl.program_id(0) // KV_HEADS
    piece = tl.program_id(1)
    length = tl.load(context_lens + sequence)
    tokens = number(piece_tokens, RECORDED)
    first = tl.maximum(length - window, 0)
    begin = first + piece * tokens
    end = tl.minimum(begin + tokens, length)

    rows, dims = tl.arange(0, ROWS), tl.arange(0, DIM_PADDED)
    row_valid = rows < tl.where(begin < end, GROUP, 0)
    head = kv_head * GROUP + rows
    token = tl.zeros((ROWS,), tl.int32) + sequence
    place = token.to(tl.int64) * query_stride_t + head * query_stride_h
    q = tl.load(query + place[:, None] + dims[None, :], mask=row_valid[:, None] & (dims < DIM)[None, :], other=0.0)
    nothing = tl.zeros((ROWS,), tl.int32)
    outputs, sums, saw = attend_stretch(
        q, key_cache, value_cache, block_tables + sequence.to(tl.int64) * table_stride, begin, end, end,
        nothing, nothing + length, kv_head, scale_log2, value_scale, KV_HEADS, DIM, DIM_PADDED, BLOCK_SIZE, ROWS, TILE,
    )  # fmt: skip
    alone = nothing + (length - first) <= tokens
    store_rows(
        outputs, sums, saw, output, partial, piece_sums, row_valid, alone, token, head, piece, pieces,
        output_stride_t, output_stride_h, KV_HEADS * GROUP, DIM, DIM_PADDED, WHOLE,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decodes:
    """The decodes of a step, which are its first sequences, as every layer computes them."""

    layout: StepLayout
    shape: AttentionShape
    target: Target
    sequences: int
    window: int  # tokens that are seen, at most

    @classmethod
    def of(cls, layout: StepLayout, shape: AttentionShape, target: Target) -> Self:
        """Of a step that has some."""
        return cls(layout, shape, target, layout.num_decodes, shape.sliding_window or layout.max_context)

    def attend(self, query: Tensor, key_cache: Tensor, value_cache: Tensor, output: Tensor) -> None:
        """query `[tokens, heads, dim]` -> `output`, the same shape, of which the decodes' rows are written."""
        layout, shape, scales = self.layout, self.shape, scales_of(self.shape, key_cache)
        group = query.shape[1] // shape.kv_heads
        launch = launch_on(self.target, table_name("decode", query, key_cache), padded_dim(shape.head_dim))
        grid = self._grid(self.cut(group, key_cache.itemsize, launch.blocks["TILE"]))
        left = LeftBehind.room_for(grid, output[: self.sequences])
        decode[(self.sequences * shape.kv_heads, grid.pieces)](
            query, key_cache, value_cache, layout.block_tables, layout.context_lens, output, left.partial, left.sums,
            shape.scale * scales.key * LOG2_E, scales.value,
            self.window, grid.tokens, grid.pieces, layout.block_tables.stride(0),
            query.stride(0), query.stride(1), output.stride(0), output.stride(1),
            KV_HEADS=shape.kv_heads, GROUP=group, DIM=shape.head_dim, DIM_PADDED=padded_dim(shape.head_dim),
            BLOCK_SIZE=shape.block_size, WHOLE=grid.pieces == 1, RECORDED=grid.recorded,
            **launch.arguments | {"ROWS": max(launch.blocks["ROWS"], padded(group))},
        )  # fmt: skip
        left.merge_into(output[: self.sequences], layout.positions, self.window)

    def cut(self, group: int, cached_bytes: int, tile: int) -> DecodeCut:
        """How contexts are cut, where `group` heads share a key; `cached_bytes` has one number in the cache."""
        return DecodeCut(
            units=self.sequences * self.shape.kv_heads,
            processors=self.target.processors,
            group=group,
            cached_bytes=cached_bytes,
            tile=tile,
        )

    def _grid(self, cut: DecodeCut) -> Grid:
        """The step's own pieces; of a recorded one the most that it can have, of a size that is set before a replay."""
        context, numbers = min(self.layout.max_context, self.window), self.layout.numbers
        if numbers is None:
            pieces = cut.pieces(context)
            return Grid(pieces.count, pieces.tokens)
        if (most := cut.most(context)) == 1:
            return Grid(1, context)
        return Grid(most, numbers.cell(PieceTokens(cut, self.window)))


@dataclass(frozen=True, slots=True)
class PieceTokens:
    """The rule by which a recorded step's pieces follow from its longest sequence."""

    cut: DecodeCut
    window: int

    def __call__(self, longest: int) -> int:
        """Tokens of a piece."""
        return self.cut.pieces(min(longest, self.window)).tokens
