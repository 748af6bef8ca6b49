"""Products with weights of 4 or 8 bits, which stay so until they are in registers.

A weight is the left operand of the tensor cores and x the right one: a tile has 64 outputs or more, but only as many
rows of x as there are, rounded up to 16. What a decode takes is then the time to read the weight, a quarter of what it
would be in 16 bits. Few rows and outputs make too few programs to keep memory busy, so the inputs are cut as well
(split-K); the parts are added in the same order each time, so that equal steps give equal bits.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# (Triton gives a kernel's arguments their types when it is launched.)
from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels import linear
from octavo_engine.kernels.linear import GatedProjection, Projection
from octavo_engine.kernels.quantized import QuantizedMatrix
from octavo_engine.kernels.triton.targets import FUSED, Launch, Target, launch_on
from octavo_engine.kernels.triton.w4a16_layout import WORDS, PackedMatrix, misfit

log = logging.getLogger(__name__)

PROGRAMS_A_PROCESSOR = 2  # that are wanted, of those that fit
LEAST_BLOCKS = 2  # of one program's inputs: fewer would not outweigh the sums that it leaves behind
LEAST_ROWS, MOST_ROWS = 16, 128  # of a tile
MERGED_COLUMNS = 256
COLUMN = tl.constexpr(WORDS)


@triton.jit
def _sums(  # noqa: PLR0917 - a kernel's arguments are positional
    x, words, scales, zeros, row, output, first, last, rows, height, inputs, groups, x_stride,
    BITS: tl.constexpr, GROUP: tl.constexpr, FLUSH: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """float32 `[OUTPUTS, ROWS]`: rows `output` of the weight times rows `row` of x, over the blocks `[first, last)`.

    Codes are multiplied as they are, and a sum is scaled when the scale changes: that is exact, and cheaper than to
    scale each weight.
    """
    column = tl.arange(0, COLUMN)
    known, there = output < height, row < rows
    block_inputs: tl.constexpr = COLUMN * 32 // BITS
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    for block in range(first, last):
        place = words + (block * height + output)[:, None] * COLUMN + column[None, :]
        tile = tl.load(place, mask=known[:, None], other=0)
        for start in tl.static_range(0, block_inputs, FLUSH):
            group = tl.minimum((block * block_inputs + start) // GROUP, groups - 1)
            zero = tl.load(zeros + group * height + output, mask=known, other=0).to(tl.int32)
            part = tl.zeros((OUTPUTS, ROWS), tl.float32)
            for at in tl.static_range(start, start + FLUSH, COLUMN):
                codes = ((tile >> (at // COLUMN * BITS)) & (2**BITS - 1)) - zero[:, None]
                place = block * block_inputs + at + column
                numbers = tl.load(
                    x + row[None, :].to(tl.int64) * x_stride + place[:, None],
                    mask=(place < inputs)[:, None] & there[None, :],
                    other=0.0,
                )
                part = tl.dot(codes.to(tl.float32).to(numbers.dtype), numbers, part, input_precision="ieee")
            scale = tl.load(scales + group * height + output, mask=known, other=0.0).to(tl.float32)
            total += part * scale[:, None]
    return total


@triton.jit
def _finished(sums, ups, output, place, mask, bias, residual, outputs, GATED: tl.constexpr):  # noqa: PLR0917
    """What follows a product, before it is rounded."""
    if bias is not None:
        sums += tl.load(bias + output, mask=output < outputs, other=0.0).to(tl.float32)
    if GATED:
        if bias is not None:
            ups += tl.load(bias + outputs + output, mask=output < outputs, other=0.0).to(tl.float32)
        sums = sums * tl.sigmoid(sums) * ups
    if residual is not None:
        sums += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    return sums


@triton.jit(do_not_specialize=["rows", "blocks", "share"])
def quantized_product(  # noqa: PLR0917
    x, words, scales, zeros, bias, residual, out, rows, outputs, height, inputs, groups, blocks, share, x_stride,
    BITS: tl.constexpr, GROUP: tl.constexpr, FLUSH: tl.constexpr, GATED: tl.constexpr, SPLIT: tl.constexpr,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One tile of `out`: finished, or if SPLIT the float32 sums of a share of the blocks, `[split, rows, height]`.

    Programs with the same outputs and other rows are launched one after the other: they find the weight in the cache.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    first = tl.program_id(2) * share
    last = tl.minimum(first + share, blocks)
    mask = (output < outputs)[:, None] & (row < rows)[None, :]
    sums = tl.zeros((OUTPUTS, ROWS), tl.float32)
    gate = sums
    for half in range(2 if GATED else 1):  # a loop, and not twice the code: it takes seconds to compile
        sums = _sums(x, words, scales, zeros, row, output + half * outputs, first, last, rows, height, inputs, groups,
                     x_stride, BITS, GROUP, FLUSH, OUTPUTS, ROWS)  # fmt: skip
        if SPLIT:
            part = (tl.program_id(2).to(tl.int64) * rows + row)[None, :] * height + output[:, None] + half * outputs
            tl.store(out + part, sums, mask=mask)
        elif GATED:
            gate = tl.where(half == 0, sums, gate)
    if not SPLIT:
        place = row[None, :].to(tl.int64) * outputs + output[:, None]
        if GATED:
            done = _finished(gate, sums, output[:, None], place, mask, bias, residual, outputs, GATED)
        else:
            done = _finished(sums, sums, output[:, None], place, mask, bias, residual, outputs, GATED)
        tl.store(out + place, done.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "splits"])
def merge_splits(  # noqa: PLR0917
    parts, bias, residual, out, rows, outputs, height, splits, GATED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the parts `[splits, rows, height]` of one row, and finish it."""
    row = tl.program_id(0).to(tl.int64)
    output = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = output < outputs
    sums = tl.zeros((COLUMNS,), tl.float32)
    ups = tl.zeros((COLUMNS,), tl.float32)
    for split in range(splits):
        place = (split * rows + row) * height + output
        sums += tl.load(parts + place, mask=mask, other=0.0)
        if GATED:
            ups += tl.load(parts + place + outputs, mask=mask, other=0.0)
    place = row * outputs + output
    done = _finished(sums, ups, output, place, mask, bias, residual, outputs, GATED)
    tl.store(out + place, done.to(out.dtype.element_ty), mask=mask)


class Shares(NamedTuple):
    """How the inputs of a product are divided among programs."""

    splits: int
    blocks: int  # of each but the last


def shares_of(blocks: int, tiles: int, target: Target) -> Shares:
    """Cut `blocks` of inputs until `tiles` of the result keep the device busy."""
    wanted = PROGRAMS_A_PROCESSOR * target.processors // tiles
    splits = max(1, min(wanted, blocks // LEAST_BLOCKS))
    share = -(-blocks // splits)
    return Shares(-(-blocks // share), share)


@dataclass(frozen=True, slots=True)
class Product:
    """x times a packed weight, and what follows."""

    target: Target
    matrix: PackedMatrix
    bias: Tensor | None  # [out]
    gated: bool = False  # the rows of gate are above those of up

    @property
    def outputs(self) -> int:
        """Numbers of one row of the result."""
        return self.matrix.outputs // 2 if self.gated else self.matrix.outputs

    def times(self, x: Tensor, *, residual: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """`x [rows, in]` -> `[rows, out]` in `dtype`, x's own by default; written over the residual if there is one."""
        launch = choose_launch(self.target, x)
        if self.matrix.order is not None:
            x = x.index_select(1, self.matrix.order)
        assert x.stride(1) == 1
        assert residual is None or residual.is_contiguous()
        tiles = triton.cdiv(self.outputs, launch.blocks["OUTPUTS"]) * triton.cdiv(len(x), launch.blocks["ROWS"])
        shares = shares_of(self.matrix.blocks, tiles, self.target)
        out = residual
        if out is None:
            out = torch.empty((len(x), self.outputs), dtype=dtype or x.dtype, device=x.device)
        if shares.splits == 1:
            self._launch(launch, shares, x, residual, out)
        else:
            shape = (shares.splits, len(x), self.matrix.outputs)
            parts = torch.empty(shape, dtype=torch.float32, device=x.device)
            self._launch(launch, shares, x, None, parts)
            self._merge(parts, residual, out)
        return out

    def _launch(self, launch: Launch, shares: Shares, x: Tensor, residual: Tensor | None, out: Tensor) -> None:
        matrix, (rows, inputs) = self.matrix, x.shape
        grid = (
            triton.cdiv(rows, launch.blocks["ROWS"]),
            triton.cdiv(self.outputs, launch.blocks["OUTPUTS"]),
            shares.splits,
        )
        quantized_product[grid](
            x, matrix.words, matrix.scales, matrix.zeros, self.bias, residual, out, rows, self.outputs, matrix.outputs,
            inputs, len(matrix.scales), matrix.blocks, shares.blocks, x.stride(0),
            BITS=matrix.bits, GROUP=matrix.group, FLUSH=matrix.flush, GATED=self.gated, SPLIT=shares.splits > 1,
            **launch.arguments,
        )  # fmt: skip

    def _merge(self, parts: Tensor, residual: Tensor | None, out: Tensor) -> None:
        splits, rows, height = parts.shape
        merge_splits[(rows, triton.cdiv(self.outputs, MERGED_COLUMNS))](
            parts, self.bias, residual, out, rows, self.outputs, height, splits,
            GATED=self.gated, COLUMNS=MERGED_COLUMNS, **FUSED,
        )  # fmt: skip


def choose_launch(target: Target, x: Tensor) -> Launch:
    """By the number of x's rows, rounded up to a tile, and the bits of its numbers."""
    rows = min(max(triton.next_power_of_2(len(x)), LEAST_ROWS), MOST_ROWS)
    return launch_on(target, f"quantized{8 * x.element_size()}", rows)


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """The packed Projection."""

    product: Product

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, out]`."""
        return self.product.times(x)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Adds in place, before rounding."""
        return self.product.times(x, residual=residual)

    def wide(self, x: Tensor) -> Tensor:
        """float32 `[tokens, out]`."""
        return self.product.times(x, dtype=torch.float32)


@dataclass(frozen=True, slots=True)
class PackedGatedLinear:
    """The packed GatedProjection."""

    product: Product

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, intermediate]`."""
        return self.product.times(x)


@dataclass(frozen=True, slots=True)
class QuantizedProducts:
    """How quantized weights become projections on one target."""

    target: Target

    def projection(self, weight: QuantizedMatrix, bias: Tensor | None, dtype: torch.dtype) -> Projection:
        """Packed, if it packs."""
        if (packed := _packed(weight)) is None:
            return linear.plain_quantized(weight, bias, dtype)
        return PackedLinear(Product(self.target, packed, bias))

    def gated(self, weight: QuantizedMatrix, bias: Tensor | None, dtype: torch.dtype) -> GatedProjection:
        """The same for a gated MLP."""
        if (packed := _packed(weight)) is None:
            return linear.plain_quantized_gated(weight, bias, dtype)
        return PackedGatedLinear(Product(self.target, packed, bias, gated=True))


def _packed(weight: QuantizedMatrix) -> PackedMatrix | None:
    packed = PackedMatrix.of(weight)
    if packed is None:
        sizes = " x ".join(map(str, weight.shape))
        log.warning("a weight of %s is dequantized at each step, many times slower: %s", sizes, misfit(weight))
    return packed
