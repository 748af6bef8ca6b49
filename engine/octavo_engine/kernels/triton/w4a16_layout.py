"""How a quantized weight lies for the kernel of `w4a16`: words in the order in which they are read, and exact integers.

A block is 256 inputs of 4 bits, or 128 of 8. An output's block is 32 words of 32 bits; the codes of word `w` are those
of inputs `w`, `w + 32`, `w + 64`, ... So one shift of a tile of words gives the codes of 32 neighbouring inputs, which
meet 32 neighbouring numbers of x: nothing has to change places between memory and the tensor cores.

Zero points are kept as integers, and taken off the codes before they are multiplied: code minus zero is exact in every
16-bit type, so a product's only rounding is that of its sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from octavo_engine.kernels.quantized import Bits, QuantizedMatrix

WORDS = 32  # of one output and one block; 32 inputs are two steps of a tensor core
NARROW = (torch.float16, torch.bfloat16)  # the types of checkpoints' scales
MAX_WORDS = 2**31  # the kernel counts them in 32 bits: 16 thousand million weights of 4 bits


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight `[out, in]`: `scale * (code - zero)`."""

    bits: Bits
    words: Tensor  # int32 [blocks, out, 32]
    scales: Tensor  # [groups, out], in the narrowest type that holds them exactly
    zeros: Tensor  # int16 [groups, out]
    group: int  # inputs
    inputs: int
    order: Tensor | None  # int64 [in]: the input that each column belongs to

    @classmethod
    def of(cls, matrix: QuantizedMatrix) -> Self | None:
        """None for a weight that does not have this form: see `misfit`."""
        zeros = zero_points(matrix)
        if zeros is None or not aligned(matrix.group, matrix.shape[1]):
            return None
        words = pack_words(matrix.unpacked(), matrix.bits)
        assert words.numel() < MAX_WORDS
        return cls(
            bits=matrix.bits,
            words=words,
            scales=narrowed(matrix.scales.t().contiguous()),
            zeros=zeros.t().contiguous(),
            group=matrix.group,
            inputs=matrix.shape[1],
            order=matrix.order,
        )

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return self.words.shape[1]

    @property
    def blocks(self) -> int:
        """Pieces of its inputs."""
        return len(self.words)

    @property
    def flush(self) -> int:
        """Inputs after which a running sum is scaled: as many as always share a scale."""
        return block_inputs(self.bits) if len(self.scales) == 1 else math.gcd(self.group, block_inputs(self.bits))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        order = 0 if self.order is None else self.order.nbytes
        return self.words.nbytes + self.scales.nbytes + self.zeros.nbytes + order


def block_inputs(bits: Bits) -> int:
    """Inputs of a block."""
    return WORDS * 32 // bits


def aligned(group: int, inputs: int) -> bool:
    """Whether 32 neighbours always share a scale."""
    return group >= inputs or group % WORDS == 0


def misfit(matrix: QuantizedMatrix) -> str:
    """Why a weight cannot be packed, in words."""
    if not aligned(matrix.group, matrix.shape[1]):
        return f"its groups of {matrix.group} inputs are not whole multiples of {WORDS}"
    return "its offsets are not whole multiples of its scales"


def zero_points(matrix: QuantizedMatrix) -> Tensor | None:
    """int16 `[out, groups]` with `offset == -scale * zero` to the last bit; None where an offset is no multiple."""
    scales, offsets = matrix.scales, matrix.offsets
    zeros = torch.where(scales == 0, 0.0, -offsets / scales).round()
    exact = torch.equal(offsets, -(scales * zeros))  # -0 equals 0
    in_reach = bool(((zeros >= 0) & (zeros <= 2**matrix.bits)).all())  # code - zero: at most 256 in size
    return zeros.to(torch.int16) if exact and in_reach else None


def pack_words(codes: Tensor, bits: Bits) -> Tensor:
    """uint8 `[out, in]` -> int32 `[blocks, out, 32]`; inputs that fill up the last block have code 0."""
    outputs, inputs = codes.shape
    padded = F.pad(codes, (0, -inputs % block_inputs(bits)))
    parts = padded.view(outputs, -1, 32 // bits, WORDS)  # a word's codes, lowest first
    if bits == 4:
        parts = parts[:, :, 0::2] | parts[:, :, 1::2] << 4
    return parts.permute(1, 0, 3, 2).contiguous().view(torch.int32).squeeze(-1)


def narrowed(scales: Tensor) -> Tensor:
    """float32 -> a 16-bit type, if that changes none of them."""
    shorter = (scales.to(dtype) for dtype in NARROW)
    return next((short for short in shorter if torch.equal(short.float(), scales)), scales)
