"""The tensors that recorded steps read: made once, filled before each replay, padded where a batch is smaller.

A row of padding is a sequence of one token in a block of its own, which no request ever holds: whatever it computes and
stores, nobody sees.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from octavo_engine.kernels.attention import StepLayout
from octavo_engine.kernels.recorded import RecordedNumbers
from octavo_engine.runtime.inputs import StepInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphShape:
    """What recorded steps are made for."""

    sequences: int  # of the largest
    max_context: int  # tokens of the longest sequence
    block_size: int
    spare_block: int  # the padding's

    @property
    def table_width(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_context // self.block_size)


class GraphInputs:
    """One set of tensors for all sizes: each recorded step reads its first rows."""

    def __init__(self, shape: GraphShape, device: torch.device) -> None:
        self.shape = shape
        rows = shape.sequences
        self._tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._slots = torch.zeros(rows, dtype=torch.int64, device=device)
        self._context_lens = torch.zeros(rows, dtype=torch.int32, device=device)
        self._tables = torch.zeros((rows, shape.table_width), dtype=torch.int32, device=device)
        self._query_start = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._filled = 0  # rows that are a batch's; all after them are padding
        self._pad(0, rows)

    def of(self, size: int, numbers: RecordedNumbers) -> StepInputs:
        """What a recorded step of so many sequences reads."""
        layout = StepLayout(
            positions=self._positions[:size],
            slots=self._slots[:size],
            query_start=self._query_start[: size + 1],
            context_lens=self._context_lens[:size],
            block_tables=self._tables[:size],
            max_query=1,
            max_context=self.shape.max_context,
            num_decodes=size,
            numbers=numbers,
        )
        return StepInputs(self._tokens[:size], layout, None)

    def fill(self, inputs: StepInputs) -> None:
        """Copy a batch of decodes into the first rows; what an earlier one left after them becomes padding."""
        layout, rows = inputs.layout, len(inputs.tokens)
        self._tokens[:rows].copy_(inputs.tokens)
        self._positions[:rows].copy_(layout.positions)
        self._slots[:rows].copy_(layout.slots)
        self._context_lens[:rows].copy_(layout.context_lens)
        self._tables[:rows, : layout.block_tables.shape[1]].copy_(layout.block_tables)
        self._pad(rows, self._filled)
        self._filled = rows

    def clear(self) -> None:
        """All rows are padding: blocks of the latest batch may be another's by now, and must not be written again."""
        self._pad(0, self._filled)
        self._filled = 0

    def _pad(self, begin: int, end: int) -> None:
        """Make the rows `begin ... end` padding."""
        if begin >= end:
            return
        self._tokens[begin:end] = 0
        self._positions[begin:end] = 0
        self._slots[begin:end] = self.shape.spare_block * self.shape.block_size
        self._context_lens[begin:end] = 1
        self._tables[begin:end, 0] = self.shape.spare_block
