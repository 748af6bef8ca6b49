"""The matrix products of a decoder, with what follows each of them: a residual to add, or a gate to apply.

Three sets: torch's own operations anywhere; on a CPU our own (`cpu.linear`) for bfloat16 and float32 where they run,
else for bfloat16 oneDNN's packed ones (`onednn_linear`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor


class Projection(Protocol):
    """`x [tokens, in]` times a weight."""

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, out]`."""

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """`residual [tokens, out]` plus the product; the residual may be overwritten."""

    def wide(self, x: Tensor) -> Tensor:
        """The product as float32."""


class GatedProjection(Protocol):
    """The first half of a gated MLP."""

    def __call__(self, x: Tensor) -> Tensor:
        """`silu(gate(x)) * up(x)`, `[tokens, intermediate]`."""


@dataclass(frozen=True, slots=True)
class LinearKernels:
    """How weights become projections. Both functions may keep their arguments or a packed copy."""

    name: str
    projection: Callable[[Tensor, Tensor | None], Projection]  # (weight [out, in], bias [out])
    gated: Callable[[Tensor, Tensor | None], GatedProjection]  # the same, with the rows of gate above those of up


@dataclass(frozen=True, slots=True)
class Linear:
    """The plain Projection."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, out]`."""
        return F.linear(x, self.weight, self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Adds in place."""
        return residual.add_(F.linear(x, self.weight, self.bias))

    def wide(self, x: Tensor) -> Tensor:
        """float32 `[tokens, out]`, rounded to the weight's type before."""
        return self(x).float()


@dataclass(frozen=True, slots=True)
class GatedLinear:
    """The plain GatedProjection: one product for both halves."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, intermediate]`."""
        gate, up = F.linear(x, self.weight, self.bias).chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


PLAIN = LinearKernels("torch", Linear, GatedLinear)


def choose_linear(dtype: torch.dtype, device: torch.device) -> LinearKernels:
    """The fastest set for weights of that type on that device, imported on demand."""
    if device.type != "cpu" or dtype not in (torch.bfloat16, torch.float32):
        return PLAIN
    from octavo_engine.kernels import onednn_linear  # noqa: PLC0415
    from octavo_engine.kernels.cpu import library, linear  # noqa: PLC0415

    if library.load() is not None:
        return linear.KERNELS
    return onednn_linear.KERNELS if dtype == torch.bfloat16 and onednn_linear.available() else PLAIN
