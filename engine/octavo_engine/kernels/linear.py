"""The matrix products of a decoder, with what follows each of them: a residual to add, or a gate to apply.

Torch's own operations anywhere; on a CPU our own (`cpu.linear`) for bfloat16 and float32 where they run, else for
bfloat16 oneDNN's packed ones (`onednn_linear`); on CUDA torch's with our own around them (`triton.linear`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from octavo_engine.kernels.quantized import QuantizedGatedLinear, QuantizedLinear, QuantizedMatrix, QuantizedRows

log = logging.getLogger(__name__)


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


def choose_linear(dtype: torch.dtype, device: torch.device) -> LinearKernels:
    """The fastest set for weights of that type on that device, imported on demand."""
    if device.type == "cuda":
        from octavo_engine.kernels.triton import linear as launched  # noqa: PLC0415
        from octavo_engine.kernels.triton.targets import target_of  # noqa: PLC0415

        return launched.kernels_on(target_of(device))
    if dtype not in (torch.bfloat16, torch.float32):
        log.warning(
            "on a processor, %s is left to torch's own operations: --dtype bfloat16 is several times faster", dtype
        )
        return PLAIN
    from octavo_engine.kernels import onednn_linear  # noqa: PLC0415
    from octavo_engine.kernels.cpu import library, linear  # noqa: PLC0415

    if library.load() is not None:
        return linear.KERNELS
    return onednn_linear.KERNELS if dtype == torch.bfloat16 and onednn_linear.available() else PLAIN
