"""Weights of 4 or 8 bits in the one form that every format is read into, and the plain products with them.

Each run of `group` inputs of an output has a scale and an offset:

    weight[o, i] = scales[o, i // group] * code[o, i] + offsets[o, i // group]

A zero point is an offset of `-scale * zero`. With the 16-bit scales of checkpoints both terms and their sum have at
most 24 bits, so that float32 holds them exactly; where scales are float32, the sum is rounded once.

What these classes compute defines correct. Kernels take the same values, pack them as they like, and plug into
`linear.LinearKernels`; what reads formats is `model.huggingface.quantized_formats` and `model.gguf.source`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

Bits = Literal[4, 8]
SLICE_WEIGHTS = 1 << 22  # weights that a plain product has in float32 at once: 16 MiB beside it, whatever the layer


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A weight `[out, in]`."""

    bits: Bits
    codes: Tensor  # uint8, contiguous: [out, in / 2], the even input in the low half; of 8 bits [out, in]
    scales: Tensor  # float32 [out, groups]
    offsets: Tensor  # float32 [out, groups]
    group: int  # inputs of one group; the last may have fewer
    order: Tensor | None = None  # int64 [in]: the input that each column of codes belongs to; None: as they come

    def __post_init__(self) -> None:
        outputs, inputs = self.shape
        assert self.codes.dtype == torch.uint8
        assert self.scales.dtype == self.offsets.dtype == torch.float32
        assert self.scales.shape == self.offsets.shape == (outputs, -(-inputs // self.group))
        assert self.order is None or self.order.shape == (inputs,)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs, inputs."""
        return len(self.codes), self.codes.shape[1] * 8 // self.bits

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        order = 0 if self.order is None else self.order.nbytes
        return self.codes.nbytes + self.scales.nbytes + self.offsets.nbytes + order

    def unpacked(self) -> Tensor:
        """uint8 `[out, in]`: one code a byte, in the order of the columns."""
        if self.bits == 8:
            return self.codes
        return torch.stack((self.codes & 15, self.codes >> 4), dim=-1).flatten(1)

    def dequantized(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """`[out, in]` in the order of the inputs: computed in float32, then rounded to `dtype`."""
        outputs, inputs = self.shape
        groups, short = self.scales.shape[1], -inputs % self.group
        codes = F.pad(self.unpacked().float(), (0, short)).view(outputs, groups, self.group)
        weight = codes.mul_(self.scales[:, :, None]).add_(self.offsets[:, :, None])
        columns = weight.view(outputs, groups * self.group)[:, :inputs].to(dtype)
        if self.order is None:
            return columns.contiguous()
        return torch.empty_like(columns).index_copy_(1, self.order, columns)

    def rows(self, chosen: slice | Tensor) -> QuantizedMatrix:
        """The same for some outputs: a slice, or their numbers, int64 `[n]`."""
        return replace(self, codes=self.codes[chosen], scales=self.scales[chosen], offsets=self.offsets[chosen])

    def columns(self, chosen: range) -> QuantizedMatrix:
        """The same for neighbouring inputs, of a matrix without `order`.

        Groups get smaller where the first is within one. Of 4 bits, the first is even, and so is their number.
        """
        assert self.order is None
        assert self.bits == 8 or (chosen.start | len(chosen)) % 2 == 0
        group = math.gcd(self.group, chosen.start)
        first, last = chosen.start // group, -(-chosen.stop // group)
        each = self.group // group
        scales, offsets = (
            part.repeat_interleave(each, dim=1)[:, first:last].contiguous() for part in (self.scales, self.offsets)
        )
        codes = self.codes[:, chosen.start * self.bits // 8 : chosen.stop * self.bits // 8].contiguous()
        return replace(self, codes=codes, scales=scales, offsets=offsets, group=group)

    def to(self, device: torch.device) -> QuantizedMatrix:
        """On that device."""
        order = None if self.order is None else self.order.to(device)
        codes, scales, offsets = (part.to(device) for part in (self.codes, self.scales, self.offsets))
        return replace(self, codes=codes, scales=scales, offsets=offsets, order=order)


def packed(codes: Tensor) -> Tensor:
    """Codes below 16, uint8 `[out, in]` with an even number of inputs -> two in a byte, `[out, in / 2]`."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def stackable(first: QuantizedMatrix, second: QuantizedMatrix) -> bool:
    """True if both can be one matrix: the same inputs, in the same groups and order."""
    if (first.bits, first.group, first.shape[1]) != (second.bits, second.group, second.shape[1]):
        return False
    if first.order is None or second.order is None:
        return first.order is second.order
    return torch.equal(first.order, second.order)


def stacked(parts: Sequence[QuantizedMatrix]) -> QuantizedMatrix:
    """One matrix with the outputs of all, which must be stackable."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(
        first,
        codes=torch.cat([part.codes for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        offsets=torch.cat([part.offsets for part in parts]),
    )


@dataclass(frozen=True, slots=True)
class QuantizedLinear:
    """The plain Projection of `linear`: float32 throughout, rounded to x's type once."""

    matrix: QuantizedMatrix
    bias: Tensor | None = None  # [out]

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, out]`."""
        return self.wide(x).to(x.dtype)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Adds before rounding, in place."""
        return residual.copy_(self.wide(x).add_(residual))

    def wide(self, x: Tensor) -> Tensor:
        """float32 `[tokens, out]`."""
        outputs, inputs = self.matrix.shape
        wide, step = x.float(), max(1, SLICE_WEIGHTS // inputs)
        pieces = [self.matrix.rows(slice(start, start + step)) for start in range(0, outputs, step)]
        product = torch.cat([F.linear(wide, piece.dequantized()) for piece in pieces], dim=1)
        return product if self.bias is None else product.add_(self.bias)


@dataclass(frozen=True, slots=True)
class QuantizedGatedLinear:
    """The plain GatedProjection: the rows of gate are above those of up."""

    both: QuantizedLinear

    def __call__(self, x: Tensor) -> Tensor:
        """`silu(gate(x)) * up(x)`, `[tokens, intermediate]`."""
        gate, up = self.both.wide(x).chunk(2, dim=-1)
        return F.silu(gate).mul_(up).to(x.dtype)


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """The plain LookUp: rows of an embedding that stays quantized."""

    matrix: QuantizedMatrix
    dtype: torch.dtype

    def __call__(self, tokens: Tensor) -> Tensor:
        """int64 `[tokens]` -> `[tokens, hidden]`."""
        return self.matrix.rows(tokens).dequantized(self.dtype)
