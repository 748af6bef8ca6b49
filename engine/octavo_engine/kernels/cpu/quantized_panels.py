"""How codes of 4 and 8 bits and the numbers beside them lie in panels: pure functions of tensors.

`native/quantized.h` says what a panel is, `native/codes.h` what a word is. Rows are outputs, arranged as `packing`
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from octavo_engine.kernels.quantized import Bits, packed

WORD_BITS = 32


@dataclass(frozen=True, slots=True)
class Layout:
    """The groups of a row."""

    inputs: int
    group: int  # inputs of each group but the last, which may have fewer
    bits: Bits

    @property
    def codes_of_word(self) -> int:
        """Inputs of one output that lie in four bytes."""
        return WORD_BITS // self.bits

    @property
    def groups(self) -> int:
        """How many."""
        return -(-self.inputs // self.group)

    @property
    def words_of_group(self) -> int:
        """Of each but the last."""
        return -(-self.group // self.codes_of_word)

    @property
    def words(self) -> int:
        """Of all groups, each of whole words."""
        last = self.inputs - (self.groups - 1) * self.group
        return (self.groups - 1) * self.words_of_group + -(-last // self.codes_of_word)

    @property
    def whole(self) -> bool:
        """True if no group needs to be filled up."""
        between = self.groups == 1 or self.group % self.codes_of_word == 0
        return between and self.inputs % self.codes_of_word == 0


def code_words(codes: Tensor, layout: Layout) -> Tensor:
    """Codes as a QuantizedMatrix has them -> int32 `[out, words]`."""
    if not layout.whole:
        codes = filled_up(codes, layout)
    if layout.bits == 8:
        return codes.contiguous().view(torch.int32)
    pairs = codes.reshape(len(codes), -1, 2, 2)  # bytes of a word, each a pair of inputs
    first, second = pairs[..., 0], pairs[..., 1]
    even, odd = (first & 15) | (second << 4), (first >> 4) | (second & 240)
    return torch.stack((even, odd), dim=2).flatten(1).view(torch.int32)


def filled_up(codes: Tensor, layout: Layout) -> Tensor:
    """The same codes with zeros after those of each group, up to whole words."""
    one_a_byte = codes
    if layout.bits == 4:
        one_a_byte = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)
    short = layout.groups * layout.group - layout.inputs
    groups = F.pad(one_a_byte, (0, short)).view(len(codes), layout.groups, layout.group)
    width = layout.words_of_group * layout.codes_of_word
    row = F.pad(groups, (0, width - layout.group)).flatten(1)[:, : layout.words * layout.codes_of_word]
    return packed(row) if layout.bits == 4 else row


def panel_words(layout: Layout, numbers: Sequence[Tensor], panel: int) -> int:
    """Words of a panel of so many outputs. numbers: what stands beside the codes, for its type."""
    beside = sum(panel * part.element_size() // 4 for part in numbers)
    return layout.groups * beside + layout.words * panel


def fill(panels: Tensor, words: Tensor, numbers: Sequence[Tensor], layout: Layout, panel: int) -> None:
    """Write panels.

    Args:
        panels: int32 `[panels, panel_words(...)]`.
        words: int32 `[panels * panel, layout.words]`.
        numbers: float16 or float32 `[panels * panel, groups]`.
        panel: outputs of one.
    """
    headers = torch.cat([_by_group(part, len(panels)) for part in numbers], dim=2)
    columns = words.view(len(panels), panel, -1)
    size, each, most = headers.shape[2], layout.words_of_group, layout.groups - 1
    record = size + each * panel
    if most:
        records = panels[:, : most * record].view(len(panels), most, record)
        _fill_groups(records, headers[:, :most], columns[:, :, : most * each])
    _fill_groups(panels[:, None, most * record :], headers[:, most:], columns[:, :, most * each :])


def _by_group(numbers: Tensor, panels: int) -> Tensor:
    """`[panels * panel, groups]` -> int32 `[panels, groups, words]`."""
    groups = numbers.shape[1]
    return numbers.view(panels, -1, groups).transpose(1, 2).flatten().view(torch.int32).view(panels, groups, -1)


def _fill_groups(records: Tensor, headers: Tensor, columns: Tensor) -> None:
    """records `[panels, groups, words]`; columns `[panels, panel, words of all groups]`."""
    size, panel = headers.shape[2], columns.shape[1]
    records[:, :, :size] = headers
    count, groups = records.shape[:2]
    words = columns.view(count, panel, groups, -1).permute(0, 2, 3, 1)
    records[:, :, size:].view(count, groups, -1, panel).copy_(words)
