"""The second step of attention over contexts that were cut: pieces weighed by their softmax sums.

Idea: Flash-Decoding (https://pytorch.org/blog/flash-decoding/).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.triton.common import number, padded_dim
from octavo_engine.kernels.triton.targets import FUSED

AT_ONCE = 16  # pieces that are merged at a time


@triton.jit(do_not_specialize=["window", "piece_tokens", "pieces", "skipped"])  # a step's: compile once
def merge(  # noqa: PLR0917 - a kernel's arguments are positional
    partial, piece_sums, positions, output, window, piece_tokens, pieces, skipped, output_stride_t, output_stride_h,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, AT_ONCE: tl.constexpr, RECORDED: tl.constexpr,
):  # fmt: skip
    """Output of one (token, head), unless its context is a single piece, which has written it already."""
    token, head = skipped + tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    context = tl.minimum(tl.load(positions + token).to(tl.int32) + 1, window)
    count = tl.cdiv(context, number(piece_tokens, RECORDED))
    end = tl.where(count == 1, 0, count)
    each, dims = tl.arange(0, AT_ONCE), tl.arange(0, DIM_PADDED)
    place = (token.to(tl.int64) * HEADS + head) * pieces
    largest = tl.full((1,), float("-inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    merged = tl.zeros((DIM_PADDED,), tl.float32)
    for start in range(0, end, AT_ONCE):
        piece = start + each
        logs = tl.load(piece_sums + place + piece, mask=piece < end, other=float("-inf"))
        readable = (piece < end)[:, None] & (dims < DIM)[None, :]
        parts = tl.load(partial + (place + piece)[:, None] * DIM + dims[None, :], mask=readable, other=0.0)
        new_largest = tl.maximum(largest, tl.max(logs, 0))
        correction = tl.exp2(largest - new_largest)
        weights = tl.exp2(logs - new_largest)
        total = total * correction + tl.sum(weights, 0)
        merged = merged * correction + tl.sum(parts * weights[:, None], 0)
        largest = new_largest
    target = output + token.to(tl.int64) * output_stride_t + head * output_stride_h + dims
    mask = dims < tl.where(end > 0, DIM, 0)
    tl.store(target, (merged / tl.where(total > 0.0, total, 1.0)).to(output.dtype.element_ty), mask=mask)


class Grid(NamedTuple):
    """How contexts are cut in one launch."""

    pieces: int  # that each context has programs for
    tokens: int | Tensor  # of a piece; int32 `[1]` where a recorded step finds it

    @property
    def recorded(self) -> bool:
        """Whether the tokens of a piece are on the device."""
        return isinstance(self.tokens, Tensor)


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """What pieces leave for the merge: outputs and sums of each (token, head, piece)."""

    grid: Grid
    partial: Tensor | None  # float32 [tokens, heads, pieces, dim]; what no piece wrote is not read
    sums: Tensor | None  # float32 [tokens, heads, pieces]

    @classmethod
    def room_for(cls, grid: Grid, output: Tensor) -> Self:
        """Memory for an output `[tokens, heads, dim]`; none where nothing is cut."""
        if grid.pieces == 1:
            return cls(grid, None, None)
        tokens, heads, dim = output.shape
        shape = (tokens, heads, grid.pieces)
        return cls(
            grid,
            torch.empty((*shape, dim), dtype=torch.float32, device=output.device),
            torch.empty(shape, dtype=torch.float32, device=output.device),
        )

    def merge_into(self, output: Tensor, positions: Tensor, window: int, skipped: int = 0) -> None:
        """Write what is in more than one piece; positions int64 `[tokens]`, of which the first ones may be skipped."""
        if self.grid.pieces == 1:
            return
        tokens, heads, dim = output.shape
        merge[((tokens - skipped) * heads,)](
            self.partial, self.sums, positions, output, window, self.grid.tokens, self.grid.pieces,
            skipped, output.stride(0), output.stride(1),
            HEADS=heads, DIM=dim, DIM_PADDED=padded_dim(dim), AT_ONCE=AT_ONCE, RECORDED=self.grid.recorded,
            num_warps=2, **FUSED,
        )  # fmt: skip
