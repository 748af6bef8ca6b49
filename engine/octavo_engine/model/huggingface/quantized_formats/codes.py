"""Codes out of words, and into the form of a QuantizedMatrix. What all formats share.

A matrix shares no memory with the tensors that it was read from, which may be the checkpoint's file.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo_engine.errors import CheckpointInvalid
from octavo_engine.kernels.quantized import QuantizedMatrix, packed
from octavo_engine.model.values.quantization import Scheme


def from_words(words: Tensor, bits: int, count: int) -> Tensor:
    """int32 `[rows, words]`, codes side by side from the lowest bit of the first word on -> uint8 `[rows, count]`.

    A code of 3 bits may begin in one word and end in the next.
    """
    stream = words.contiguous().view(torch.uint8)  # little-endian, as all machines that we run on
    if bits == 8:
        return stream[:, :count]
    if bits == 3:
        return _across_bytes(stream, bits, count)
    mask, per_byte = (1 << bits) - 1, 8 // bits
    fields = [(stream >> (bits * place)) & mask for place in range(per_byte)]
    return torch.stack(fields, dim=-1).flatten(1)[:, :count]


def _across_bytes(stream: Tensor, bits: int, count: int) -> Tensor:
    begins = torch.arange(count) * bits
    first = begins // 8
    wide = torch.nn.functional.pad(stream, (0, 1)).to(torch.int32)
    pairs = wide[:, first] | (wide[:, first + 1] << 8)
    return ((pairs >> (begins % 8)) & ((1 << bits) - 1)).to(torch.uint8)


@dataclass(frozen=True, slots=True)
class Groups:
    """What the codes of one group share, for all of a weight."""

    scales: Tensor  # [out, groups]
    zeros: Tensor  # codes that mean zero, any type, [out, groups]
    order: Tensor | None = None  # as `order_of` gives it


def matrix_of_words(words: Tensor, inputs: int, groups: Groups, scheme: Scheme) -> QuantizedMatrix:
    """As `matrix`, from codes that lie side by side in int32 `[out, words]`: mostly, they are what we want already."""
    if groups.order is not None or scheme.bits != scheme.code_bits(inputs):
        return matrix(from_words(words, scheme.bits, inputs), groups, scheme)
    stream = words.contiguous().view(torch.uint8)[:, : inputs * scheme.bits // 8]
    return _assembled(stream.clone(memory_format=torch.contiguous_format), inputs, groups, scheme)


def matrix(codes: Tensor, groups: Groups, scheme: Scheme) -> QuantizedMatrix:
    """The matrix of `scale * (code - zero)`; codes: uint8 `[out, in]`, in the order of the inputs."""
    inputs = codes.shape[1]
    columns = codes if groups.order is None else codes[:, groups.order]
    kept = packed(columns) if scheme.code_bits(inputs) == 4 else columns.clone(memory_format=torch.contiguous_format)
    return _assembled(kept, inputs, groups, scheme)


def _assembled(codes: Tensor, inputs: int, groups: Groups, scheme: Scheme) -> QuantizedMatrix:
    scales = groups.scales.to(torch.float32, copy=True).contiguous()
    return QuantizedMatrix(
        bits=scheme.code_bits(inputs),
        codes=codes,
        scales=scales,
        offsets=scales.mul(groups.zeros).neg_(),
        group=scheme.group_of(inputs),
        order=groups.order,
    )


def middle(scales: Tensor, scheme: Scheme) -> Tensor:
    """The zero points of symmetric codes, `[out, groups]`."""
    return torch.full_like(scales, 1 << (scheme.bits - 1), dtype=torch.float32)


def order_of(groups: Tensor | None, scheme: Scheme) -> Tensor | None:
    """The inputs in the order of their groups, int64 `[in]`; None where they are so already.

    Args:
        groups: the group of each input, `[in]`; None, or -1 somewhere, where inputs are in order.

    Raises CheckpointInvalid unless each group has as many inputs as the config says, and only the last fewer.
    """
    if groups is None or bool((groups < 0).any()):
        return None
    expected = torch.arange(len(groups)) // scheme.group_of(len(groups))
    if torch.equal(groups.long(), expected):
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups.long()[order], expected):
        raise CheckpointInvalid(f"its inputs are not in groups of {scheme.group_of(len(groups))}, as the config says")
    return order
