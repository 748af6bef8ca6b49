"""Products in bfloat16 and float32 with weights packed once, for a few rows or many (`native/linear.cpp`).

A packed weight replaces the plain one; nothing is kept twice. What follows a product is done before its sums are
rounded: bias, residual, the gate of an MLP.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_int64, c_void_p
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from octavo_engine.kernels.cpu import quantized
from octavo_engine.kernels.cpu.arena import WEIGHTS
from octavo_engine.kernels.cpu.library import SUFFIXES, address, kernels, lanes
from octavo_engine.kernels.cpu.packing import Kind, PackedGatedLinear, PackedLinear, interleave, padded
from octavo_engine.kernels.linear import (
    GatedLinear,
    GatedProjection,
    Linear,
    LinearKernels,
    Projection,
    Tied,
    plain_tied,
)


class Weight(ctypes.Structure):
    """The kernel's view of a packed weight; the same fields as in `native/linear.cpp`."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("gated", c_int64),
    )


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed weight and the memory behind it."""

    kind: ClassVar[Kind] = Kind.PLAIN
    panels: Tensor  # bfloat16 [panels, inputs / 2, panel, 2] or float32 [panels, inputs, panel, 1]; panel: two vectors
    bias: Tensor | None  # float32 [panels * panel]
    outputs: int
    view: Weight
    pointer: int  # of the view
    call: Callable[..., None]

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None, *, gated: bool) -> Self:
        """Pack `[out, in]`; of a gated one, the rows of gate are above those of up."""
        outputs = len(weight) // 2 if gated else len(weight)
        arrange, width = interleave if gated else padded, lanes()
        step = inputs_of_a_step(weight)
        # A step's inputs move as one word: torch copies pairs of bfloat16 eight times slower.
        rows = arrange(weight, width).view(torch.int32).view(-1, 2 * width, weight.shape[1] // step)
        turned = rows.transpose(1, 2)
        words = WEIGHTS.empty(turned.shape, torch.int32).copy_(turned)
        panels = words.view(weight.dtype).view(*words.shape, step)
        offsets = None if bias is None else arrange(bias[:, None], width).float().flatten().contiguous()
        view = Weight(address(panels), address(offsets), weight.shape[1], outputs, gated)
        call = getattr(kernels(), f"octavo_linear_{SUFFIXES[weight.dtype]}")
        return cls(panels, offsets, outputs, view, ctypes.addressof(view), call)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weight, and so of its products."""
        return self.panels.dtype

    def rows(self, numbers: Tensor) -> Tensor:
        """int64 `[n]`, each below the number of rows -> `[n, in]`, those rows as they were before packing."""
        out = torch.empty((len(numbers), self.view.inputs), dtype=self.panels.dtype)
        look_up = getattr(kernels(), f"octavo_rows_{SUFFIXES[out.dtype]}")
        look_up(self.pointer, numbers.data_ptr(), len(numbers), out.data_ptr(), torch.get_num_threads())
        return out


def inputs_of_a_step(weight: Tensor) -> int:
    """How many inputs of one output four bytes hold."""
    return 4 // weight.element_size()


def packs(weight: Tensor) -> bool:
    """False for an odd number of inputs in bfloat16, which no real model has."""
    return weight.shape[1] % inputs_of_a_step(weight) == 0


def projection(weight: Tensor, bias: Tensor | None) -> Projection:
    """Packed, if it packs."""
    return PackedLinear(Packed.of(weight, bias, gated=False)) if packs(weight) else Linear(weight, bias)


def gated(weight: Tensor, bias: Tensor | None) -> GatedProjection:
    """The same for a gated MLP."""
    return PackedGatedLinear(Packed.of(weight, bias, gated=True)) if packs(weight) else GatedLinear(weight, bias)


def tied(weight: Tensor) -> Tied:
    """Packed once for both: looking up takes a line of memory for each word, still well under a hundredth of a step."""
    if not packs(weight):
        return plain_tied(weight)
    packed = Packed.of(weight, None, gated=False)
    return Tied(packed.rows, PackedLinear(packed))


KERNELS = LinearKernels(
    "cpu",
    projection,
    gated,
    tied,
    quantized=quantized.projection,
    quantized_gated=quantized.gated,
    quantized_tied=quantized.tied,
    multiplies_codes=True,
)
