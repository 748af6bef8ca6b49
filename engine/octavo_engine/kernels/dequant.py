"""Block-quantized weights of GGUF back to float32. Formats: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h

Each function takes blocks as raw bytes, uint8 `[blocks, bytes]`, and returns float32 `[blocks, weights]`: bit for bit
what the `gguf` library computes, at about a twentieth of its time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def _half(raw: Tensor) -> Tensor:
    """Two bytes a block as one float32, `[blocks, 1]`."""
    return raw.contiguous().view(torch.float16).float()


def _nibbles(raw: Tensor) -> Tensor:
    """float32 `[blocks, 2 * bytes]`: the low halves of all bytes, then the high halves."""
    quants = torch.empty(len(raw), 2, raw.shape[1])
    quants[:, 0] = raw & 15
    quants[:, 1] = raw >> 4
    return quants.flatten(1)


def q4_0(raw: Tensor) -> Tensor:
    """32 weights in 18 bytes: scale, 4-bit values around 8."""
    return _nibbles(raw[:, 2:]).sub_(8).mul_(_half(raw[:, :2]))


def q4_1(raw: Tensor) -> Tensor:
    """32 weights in 20 bytes: scale, minimum, 4-bit values."""
    return _nibbles(raw[:, 4:]).mul_(_half(raw[:, :2])).add_(_half(raw[:, 2:4]))


def q8_0(raw: Tensor) -> Tensor:
    """32 weights in 34 bytes: scale, signed bytes."""
    return raw[:, 2:].view(torch.int8).float().mul_(_half(raw[:, :2]))


def q4_k(raw: Tensor) -> Tensor:
    """256 weights in 144 bytes: scale and minimum of the block, 6-bit ones of its 8 groups of 32, 4-bit values."""
    packed = raw[:, 4:16]
    low, high, extra = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = torch.cat((low & 63, (extra & 15) | ((low >> 6) << 4)), dim=1) * _half(raw[:, 0:2])
    minimum = torch.cat((high & 63, (extra >> 4) | ((high >> 6) << 4)), dim=1) * _half(raw[:, 2:4])
    quants = _nibbles(raw[:, 16:].reshape(-1, 32)).view(len(raw), 8, 32)
    return quants.mul_(scale[:, :, None]).sub_(minimum[:, :, None]).flatten(1)


def q6_k(raw: Tensor) -> Tensor:
    """256 weights in 210 bytes: low 4 bits, high 2 bits, signed scales of 16 groups, scale of the block."""
    low, high = raw[:, :128].reshape(-1, 2, 1, 64), raw[:, 128:192].reshape(-1, 2, 1, 32)
    fours = torch.cat((low & 15, low >> 4), dim=2).reshape(-1, 2, 4, 32)
    twos = torch.cat([(high >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2)
    quants = (fours | (twos << 4)).reshape(-1, 16, 16).float().sub_(32)
    scale = raw[:, 192:208].view(torch.int8).float() * _half(raw[:, 208:210])
    return quants.mul_(scale[:, :, None]).flatten(1)


BY_NAME: dict[str, Callable[[Tensor], Tensor]] = {"Q4_0": q4_0, "Q4_1": q4_1, "Q8_0": q8_0, "Q4_K": q4_k, "Q6_K": q6_k}
