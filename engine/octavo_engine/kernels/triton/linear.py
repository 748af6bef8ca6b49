"""Products on CUDA: torch's own (cuBLAS) for weights of 16 and 32 bits, `w4a16` for those of 4 and 8."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from octavo_engine.kernels.linear import GatedProjection, Linear, LinearKernels, plain_tied
from octavo_engine.kernels.triton.pointwise import Pointwise
from octavo_engine.kernels.triton.targets import Target
from octavo_engine.kernels.triton.w4a16 import QuantizedProducts


@dataclass(frozen=True, slots=True)
class GatedLinear:
    """A GatedProjection: one product for both halves, then the gate in one launch instead of two."""

    pointwise: Pointwise
    weight: Tensor  # [2 * intermediate, in]
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, intermediate]`."""
        return self.pointwise.silu_multiply(F.linear(x, self.weight, self.bias))


def kernels_on(target: Target) -> LinearKernels:
    """The set as it is launched on a target."""
    pointwise, quantized = Pointwise(target), QuantizedProducts(target)

    def gated(weight: Tensor, bias: Tensor | None) -> GatedProjection:
        return GatedLinear(pointwise, weight, bias)

    return LinearKernels("triton", Linear, gated, plain_tied, quantized.projection, quantized.gated)
