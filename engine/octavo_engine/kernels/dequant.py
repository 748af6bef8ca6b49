"""Block-quantized weights of GGUF, taken apart. Formats: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h

    weight = scale * code + offset

as all of these types can be written, with codes of 4 bits, or of 8 where there are more; so they stay as small as they
are, or are expanded to float32: bit for bit what the `gguf` library computes, at about a twentieth of its time.

Each function takes blocks as raw bytes, uint8 `[blocks, bytes]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from octavo_engine.kernels.quantized import Bits, QuantizedMatrix

SLICE_BYTES = 1 << 17  # taken apart at a time: what is computed in between stays in the cache


class Blocks(NamedTuple):
    """Some blocks, taken apart."""

    codes: Tensor  # uint8 [blocks, bytes]: one code a byte, or two with the even weight in the low half
    scales: Tensor  # float32 [blocks, groups]
    offsets: Tensor  # the same


@dataclass(frozen=True, slots=True)
class BlockType:
    """How to take a type's blocks apart."""

    bits: Bits
    group: int  # weights that share a scale
    apart: Callable[[Tensor], Blocks]

    def matrix(self, raw: Tensor, outputs: int) -> QuantizedMatrix:
        """The blocks of all rows of a weight with so many outputs."""
        some = [self.apart(part) for part in torch.split(raw, max(1, SLICE_BYTES // raw.shape[1]))]
        codes, scales, offsets = (torch.cat(parts).view(outputs, -1) for parts in zip(*some, strict=True))
        return QuantizedMatrix(self.bits, codes, scales, offsets, self.group)

    def expanded(self, raw: Tensor) -> Tensor:
        """float32 `[blocks, weights]`."""
        return self.matrix(raw, len(raw)).dequantized()


def _half(raw: Tensor) -> Tensor:
    """Two bytes a block as one float32, `[blocks, 1]`."""
    return raw.contiguous().view(torch.float16).float()


def _neighbours(raw: Tensor) -> Tensor:
    """Bytes whose low halves are a run of weights and whose high halves are the next -> neighbours in one byte.

    uint8 `[runs, n]` -> `[runs, n]`.
    """
    first, second = raw[:, 0::2], raw[:, 1::2]
    return torch.cat(((first & 15) | (second << 4), (first >> 4) | (second & 240)), dim=1)


def q4_0(raw: Tensor) -> Blocks:
    """32 weights in 18 bytes: scale, 4-bit values around 8."""
    scales = _half(raw[:, :2])
    return Blocks(_neighbours(raw[:, 2:]), scales, -8 * scales)


def q4_1(raw: Tensor) -> Blocks:
    """32 weights in 20 bytes: scale, minimum, 4-bit values."""
    return Blocks(_neighbours(raw[:, 4:]), _half(raw[:, :2]), _half(raw[:, 2:4]))


def q8_0(raw: Tensor) -> Blocks:
    """32 weights in 34 bytes: scale, signed bytes."""
    scales = _half(raw[:, :2])
    return Blocks(raw[:, 2:] ^ 128, scales, -128 * scales)


def q4_k(raw: Tensor) -> Blocks:
    """256 weights in 144 bytes: scale and minimum of the block, 6-bit ones of its 8 groups of 32, 4-bit values."""
    packed = raw[:, 4:16]
    low, high, extra = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = torch.cat((low & 63, (extra & 15) | ((low >> 6) << 4)), dim=1) * _half(raw[:, 0:2])
    minima = torch.cat((high & 63, (extra >> 4) | ((high >> 6) << 4)), dim=1) * _half(raw[:, 2:4])
    return Blocks(_neighbours(raw[:, 16:].reshape(-1, 32)), scales, -minima)


def q6_k(raw: Tensor) -> Blocks:
    """256 weights in 210 bytes: low 4 bits, high 2 bits, signed scales of 16 groups, scale of the block."""
    low, high = raw[:, :128].reshape(-1, 2, 1, 64), raw[:, 128:192].reshape(-1, 2, 1, 32)
    fours = torch.cat((low & 15, low >> 4), dim=2).reshape(-1, 2, 4, 32)
    twos = torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2)
    scales = raw[:, 192:208].view(torch.int8).float() * _half(raw[:, 208:210])
    return Blocks((fours | (twos << 4)).reshape(-1, 256), scales, -32 * scales)


BY_NAME: Mapping[str, BlockType] = MappingProxyType(
    {
        "Q4_0": BlockType(4, 32, q4_0),
        "Q4_1": BlockType(4, 32, q4_1),
        "Q8_0": BlockType(8, 32, q8_0),
        "Q4_K": BlockType(4, 32, q4_k),
        "Q6_K": BlockType(8, 16, q6_k),
    }
)
