"""What packed weights have in common: how outputs are arranged in panels, and the projections over them.

A panel is two vectors of outputs. Of a gated weight it is a vector of gate beside the same of up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor

from octavo_engine.kernels.cpu.library import address


class Kind(IntEnum):
    """What a weight is packed as, as `native/product.h` numbers it."""

    PLAIN = 0
    QUANTIZED = 1
    JOINED = 2


class PackedWeight(Protocol):
    """A weight in a kernel's own layout."""

    @property
    def kind(self) -> Kind:
        """Which kernel's."""

    @property
    def outputs(self) -> int:
        """Numbers of a row of the product."""

    @property
    def pointer(self) -> int:
        """Of the kernel's view of it."""

    @property
    def dtype(self) -> torch.dtype:
        """Of x and the product."""

    @property
    def call(self) -> Callable[..., None]:
        """The kernel, with the arguments that `library` says."""


def times(weight: PackedWeight, x: Tensor, residual: Tensor | None, *, wide: bool = False) -> Tensor:
    """`x [rows, in]`, rows apart by any stride -> `[rows, out]`, written over the residual if there is one.

    Args:
        wide: as float32, whatever the weight's type.
    """
    rows, dtype = len(x), torch.float32 if wide else weight.dtype
    out = torch.empty((rows, weight.outputs), dtype=dtype) if residual is None else residual
    place = out.data_ptr()
    targets = (None, place) if wide else (place, None)
    threads = torch.get_num_threads()
    weight.call(weight.pointer, x.data_ptr(), x.stride(0), rows, address(residual), *targets, threads)
    return out


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """The packed Projection."""

    weight: PackedWeight

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, out]`."""
        return times(self.weight, x, None)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Adds in place, before rounding."""
        return times(self.weight, x, residual)

    def wide(self, x: Tensor) -> Tensor:
        """float32 `[tokens, out]`, never rounded to bfloat16."""
        return times(self.weight, x, None, wide=True)


@dataclass(frozen=True, slots=True)
class PackedGatedLinear:
    """The packed GatedProjection."""

    weight: PackedWeight

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, intermediate]`."""
        return times(self.weight, x, None)


def padded(rows: Tensor, width: int) -> Tensor:
    """`[out, any]` with rows of zero up to whole panels of two vectors of `width`."""
    return torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % (2 * width)))


def interleave(rows: Tensor, width: int) -> Tensor:
    """`[2 * out, any]`, gate above up, as panels of `width` rows of gate and the same of up."""
    halves = [torch.nn.functional.pad(half, (0, 0, 0, -len(half) % width)) for half in rows.chunk(2)]
    return torch.stack([half.view(-1, width, half.shape[1]) for half in halves], dim=1).flatten(0, 2)
