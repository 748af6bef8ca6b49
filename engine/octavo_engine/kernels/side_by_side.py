"""Products that read the same input but cannot be one: of weights in different bits, groups or orders, or of plain ones
beside quantized ones. Each is its own; their outputs are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from octavo_engine.kernels.linear import GatedProjection, LinearKernels, Projection
from octavo_engine.kernels.quantized import QuantizedMatrix

Weight = Tensor | QuantizedMatrix
"""`[out, in]`"""


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A Projection of several."""

    parts: tuple[Projection, ...]

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, out of all]`."""
        return torch.cat([part(x) for part in self.parts], dim=-1)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Adds in place, before rounding."""
        return residual.copy_(self.wide(x).add_(residual))

    def wide(self, x: Tensor) -> Tensor:
        """The same as float32."""
        return torch.cat([part.wide(x) for part in self.parts], dim=-1)


@dataclass(frozen=True, slots=True)
class GatedPair:
    """A GatedProjection of two projections."""

    gate: Projection
    up: Projection

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, intermediate]`."""
        return F.silu(self.gate.wide(x)).mul_(self.up.wide(x)).to(x.dtype)


def projection(
    kernels: LinearKernels, weights: Sequence[Weight], bias: Tensor | None, dtype: torch.dtype
) -> Projection:
    """One product with all outputs, as few as the weights allow. dtype: of the model's numbers."""
    if len(weights) == 1:
        return _single(kernels, weights[0], bias, dtype)
    biases = [None] * len(weights) if bias is None else torch.split(bias, [weight.shape[0] for weight in weights])
    parts = (_single(kernels, weight, part, dtype) for weight, part in zip(weights, biases, strict=True))
    return SideBySide(tuple(parts))


def gated(
    kernels: LinearKernels, weights: Sequence[Weight], bias: Tensor | None, dtype: torch.dtype
) -> GatedProjection:
    """The same for a gated MLP: one weight, gate above up, or each for itself."""
    if len(weights) == 1:
        (weight,) = weights
        if isinstance(weight, QuantizedMatrix):
            return kernels.quantized_gated(weight, bias, dtype)
        return kernels.gated(weight, bias)
    gate, up = weights
    biases = (None, None) if bias is None else bias.chunk(2)
    return GatedPair(_single(kernels, gate, biases[0], dtype), _single(kernels, up, biases[1], dtype))


def products_in(product: object) -> tuple[object, ...]:
    """The products that a product is made of: itself, or its parts."""
    if isinstance(product, SideBySide):
        return product.parts
    return (product.gate, product.up) if isinstance(product, GatedPair) else (product,)


def _single(kernels: LinearKernels, weight: Weight, bias: Tensor | None, dtype: torch.dtype) -> Projection:
    if isinstance(weight, QuantizedMatrix):
        return kernels.quantized(weight, bias, dtype)
    return kernels.projection(weight, bias)
