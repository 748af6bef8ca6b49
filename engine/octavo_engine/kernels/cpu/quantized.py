"""Products with weights of 4 or 8 bits, packed once, and rows of such an embedding (`native/quantized.cpp`).

Codes stay as they are; what stands beside them is kept in the narrowest form that is exact, since a decode step reads
all of it: float16 where no bit is lost, and no zero points where all codes can lie around the middle.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Self

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.arena import WEIGHTS
from octavo_engine.kernels.cpu.library import SUFFIXES, address, kernels, lanes
from octavo_engine.kernels.cpu.packing import Kind, PackedGatedLinear, PackedLinear, interleave, padded
from octavo_engine.kernels.cpu.quantized_panels import Layout, code_words, fill, panel_words
from octavo_engine.kernels.linear import GatedProjection, Projection, Tied
from octavo_engine.kernels.quantized import Bits, QuantizedMatrix

SLICE_CODES = 1 << 22  # that are packed at a time: what is in memory twice
ZERO_POINTS = 256  # are below


class Shift(IntEnum):
    """What a group has beside its scale, as `native/quantized.h` numbers it."""

    MIDDLES = 0  # nothing: weight = scale * (code - the middle of all codes)
    ZEROS = 1  # weight = scale * (code - zero)
    OFFSETS = 2  # weight = scale * code + offset


class Weight(ctypes.Structure):
    """The kernel's view of a packed weight; the same fields as in `native/quantized.h`."""

    _fields_ = (
        *((name, c_void_p) for name in ("panels", "bias", "order")),
        *((name, c_int64) for name in ("inputs", "outputs", "gated", "group", "bits", "wide", "shift")),
    )


@dataclass(frozen=True, slots=True)
class Beside:
    """What stands beside the codes, and how far these move to make it so."""

    shift: Shift
    numbers: tuple[Tensor, ...]  # [out, groups]: scales, then zeros or offsets; all float16 or all float32
    moved: int = 0  # added to every code

    @property
    def wide(self) -> bool:
        """True for float32."""
        return self.numbers[0].dtype == torch.float32


def beside(matrix: QuantizedMatrix) -> Beside:
    """The narrowest exact form."""
    zeros = zero_points(matrix)
    if zeros is None:
        return Beside(Shift.OFFSETS, narrow(matrix.scales, matrix.offsets))
    move = 2 ** (matrix.bits - 1) - int(zeros[0, 0])
    if bool((zeros == zeros[0, 0]).all()) and can_move(matrix, move):
        return Beside(Shift.MIDDLES, narrow(matrix.scales), move)
    return Beside(Shift.ZEROS, narrow(matrix.scales, zeros))


def zero_points(matrix: QuantizedMatrix) -> Tensor | None:
    """float32 `[out, groups]` of whole numbers, so that every offset is -scale * zero; None if there are no such."""
    found = (matrix.offsets / -matrix.scales).round()
    nothing = found.isnan()  # a group of zeros: any zero point is right
    known = found[~nothing]
    found[nothing] = known[0] if len(known) else 2 ** (matrix.bits - 1)
    in_range = bool(((found >= 0) & (found < ZERO_POINTS)).all())
    return found if in_range and torch.equal(found * -matrix.scales, matrix.offsets) else None


def can_move(matrix: QuantizedMatrix, by: int) -> bool:
    """True if all codes stay codes."""
    if by == 0:
        return True
    parts = (matrix.codes,) if matrix.bits == 8 else (matrix.codes & 15, matrix.codes >> 4)
    least, most = min(int(part.min()) for part in parts), max(int(part.max()) for part in parts)
    return least + by >= 0 and most + by < 2**matrix.bits


def narrow(*numbers: Tensor) -> tuple[Tensor, ...]:
    """As float16 where all are what they were, else as they are."""
    halves = tuple(part.half() for part in numbers)
    exact = all(torch.equal(half.float(), part) for half, part in zip(halves, numbers, strict=True))
    return halves if exact else numbers


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed weight and the memory behind it."""

    kind: ClassVar[Kind] = Kind.QUANTIZED
    panels: Tensor  # int32 [panels, words]: numbers and codes of one group after the other
    bias: Tensor | None  # float32 [panels * panel]
    order: Tensor | None  # int64 [in]
    outputs: int
    dtype: torch.dtype  # of the products
    view: Weight
    pointer: int  # of the view
    call: Callable[..., None]

    @classmethod
    def of(cls, matrix: QuantizedMatrix, bias: Tensor | None, dtype: torch.dtype, *, gated: bool) -> Self:
        """Pack a weight; of a gated one, the rows of gate are above those of up."""
        outputs, inputs = matrix.shape
        outputs = outputs // 2 if gated else outputs
        numbers = beside(matrix)
        panels = panels_of(matrix, numbers, gated=gated)
        arrange = interleave if gated else padded
        offsets = None if bias is None else arrange(bias[:, None], lanes()).float().flatten().contiguous()
        order = None if matrix.order is None else matrix.order.contiguous()
        view = Weight(
            *map(address, (panels, offsets, order)),
            *(inputs, outputs, gated),
            *(min(matrix.group, inputs), matrix.bits, numbers.wide, numbers.shift),
        )
        call = getattr(kernels(), f"octavo_quantized_{SUFFIXES[dtype]}")
        return cls(panels, offsets, order, outputs, dtype, view, ctypes.addressof(view), call)

    def rows(self, numbers: Tensor) -> Tensor:
        """int64 `[n]`, each below the number of rows -> `[n, in]`, exactly what the weight says, rounded once."""
        out = torch.empty((len(numbers), self.view.inputs), dtype=self.dtype)
        look_up = getattr(kernels(), f"octavo_quantized_rows_{SUFFIXES[self.dtype]}")
        look_up(self.pointer, numbers.data_ptr(), len(numbers), out.data_ptr(), torch.get_num_threads())
        return out


def panels_of(matrix: QuantizedMatrix, numbers: Beside, *, gated: bool) -> Tensor:
    """int32 `[panels, words]`, filled some panels at a time."""
    width, (outputs, inputs) = lanes(), matrix.shape
    arrange, rows = (interleave, width) if gated else (padded, 2 * width)  # rows of each half, or of all
    count = -(-(outputs // 2 if gated else outputs) // rows)
    layout = Layout(inputs, min(matrix.group, inputs), matrix.bits)
    panels = WEIGHTS.empty((count, panel_words(layout, numbers.numbers, 2 * width)), torch.int32)
    step = max(1, SLICE_CODES // (2 * width * inputs))

    def some(tensor: Tensor, first: int) -> Tensor:
        """The rows of the panels from `first` on."""
        halves = tensor.chunk(2) if gated else (tensor,)
        return arrange(torch.cat([half[first * rows : (first + step) * rows] for half in halves]), width)

    for first in range(0, count, step):
        words = code_words(moved(some(matrix.codes, first), numbers.moved, matrix.bits), layout)
        parts = [some(part, first) for part in numbers.numbers]
        fill(panels[first : first + step], words, parts, layout, 2 * width)
    return panels


def moved(codes: Tensor, by: int, bits: Bits) -> Tensor:
    """Every code more by so much, which leaves it a code."""
    each = by if bits == 8 else by * 17  # both of a byte
    return codes + each if each >= 0 else codes - -each


def projection(matrix: QuantizedMatrix, bias: Tensor | None, dtype: torch.dtype) -> Projection:
    """The packed product."""
    return PackedLinear(Packed.of(matrix, bias, dtype, gated=False))


def gated(matrix: QuantizedMatrix, bias: Tensor | None, dtype: torch.dtype) -> GatedProjection:
    """The same for a gated MLP, gate above up."""
    return PackedGatedLinear(Packed.of(matrix, bias, dtype, gated=True))


def tied(embedding: QuantizedMatrix, dtype: torch.dtype) -> Tied:
    """Packed once for both uses."""
    weight = Packed.of(embedding, None, dtype, gated=False)
    return Tied(weight.rows, PackedLinear(weight))
