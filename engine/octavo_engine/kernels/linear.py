"""The matrix products of a decoder, with what follows each of them: a residual to add, or a gate to apply.

What a set of them offers, and the plain set: torch's own operations. Others are `cpu.linear`, `onednn_linear` and
`triton.linear`; `choice` knows which one is for whom.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from octavo_engine.kernels.quantized import QuantizedGatedLinear, QuantizedLinear, QuantizedMatrix, QuantizedRows


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


LookUp = Callable[[Tensor], Tensor]
"""int64 `[tokens]` -> their rows of an embedding, `[tokens, hidden]`."""


class Tied(NamedTuple):
    """The two uses of an embedding that is also the projection to the vocabulary."""

    look_up: LookUp
    head: Projection


def plain_quantized(weight: QuantizedMatrix, bias: Tensor | None, _dtype: torch.dtype) -> Projection:
    """Dequantized at each call."""
    return QuantizedLinear(weight, bias)


def plain_quantized_gated(weight: QuantizedMatrix, bias: Tensor | None, _dtype: torch.dtype) -> GatedProjection:
    """The same for a gated MLP."""
    return QuantizedGatedLinear(QuantizedLinear(weight, bias))


def plain_quantized_tied(embedding: QuantizedMatrix, dtype: torch.dtype) -> Tied:
    """The same for both uses of an embedding."""
    return Tied(QuantizedRows(embedding, dtype), QuantizedLinear(embedding))


@dataclass(frozen=True, slots=True)
class LinearKernels:
    """How weights become projections. All functions may keep their arguments or a packed copy.

    Those for quantized weights are told the type of the model's numbers, which the weight does not show.
    """

    name: str
    projection: Callable[[Tensor, Tensor | None], Projection]  # (weight [out, in], bias [out])
    gated: Callable[[Tensor, Tensor | None], GatedProjection]  # the same, with the rows of gate above those of up
    tied: Callable[[Tensor], Tied]  # (embedding [vocab, hidden])
    quantized: Callable[[QuantizedMatrix, Tensor | None, torch.dtype], Projection] = plain_quantized
    quantized_gated: Callable[[QuantizedMatrix, Tensor | None, torch.dtype], GatedProjection] = plain_quantized_gated
    quantized_tied: Callable[[QuantizedMatrix, torch.dtype], Tied] = plain_quantized_tied
    multiplies_codes: bool = False  # those for quantized weights are fast: better not expand one


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


def plain_look_up(embedding: Tensor) -> LookUp:
    """Of `[vocab, hidden]`."""
    return lambda tokens: F.embedding(tokens, embedding)


def plain_tied(embedding: Tensor) -> Tied:
    """One tensor for both."""
    return Tied(plain_look_up(embedding), Linear(embedding))


PLAIN = LinearKernels("torch", Linear, GatedLinear, plain_tied)
