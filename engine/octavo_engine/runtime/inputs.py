"""A batch as tensors. Pure: the same batch gives the same tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from octavo_engine.batch import Batch
from octavo_engine.kernels.attention import StepLayout


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model needs for one step, on its device."""

    tokens: torch.Tensor  # int64 [tokens]
    layout: StepLayout
    sampling_rows: torch.Tensor  # int64 [samples]: rows of the hidden states that give a next token


def build_inputs(batch: Batch, block_size: int, device: torch.device) -> StepInputs:
    """Lay the batch's slices out one after another, in batch order (decodes first)."""
    slices = batch.slices
    counts = np.fromiter((piece.count for piece in slices), np.int64, len(slices))
    starts = np.fromiter((piece.start for piece in slices), np.int64, len(slices))
    query_start = np.zeros(len(slices) + 1, np.int64)
    np.cumsum(counts, out=query_start[1:])
    total = int(query_start[-1])
    tables = _block_tables(batch, block_size)
    owner = np.repeat(np.arange(len(slices)), counts)
    positions = np.arange(total) - query_start[owner] + starts[owner]
    slots = tables[owner, positions // block_size].astype(np.int64) * block_size + positions % block_size
    tokens = np.empty(total, np.int64)
    for piece, begin in zip(slices, query_start, strict=False):
        tokens[begin : begin + piece.count] = piece.request.tokens[piece.start : piece.stop]
    sampling = np.array([piece.samples for piece in slices], bool)

    def tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.from_numpy(array).to(device=device, dtype=dtype)

    layout = StepLayout(
        positions=tensor(positions, torch.int64),
        slots=tensor(slots, torch.int64),
        query_start=tensor(query_start, torch.int32),
        context_lens=tensor(starts + counts, torch.int32),
        block_tables=tensor(tables, torch.int32),
        max_query=int(counts.max()),
        max_context=int((starts + counts).max()),
        num_decodes=int((counts == 1).sum()),
    )
    return StepInputs(tensor(tokens, torch.int64), layout, tensor(query_start[1:][sampling] - 1, torch.int64))


def _block_tables(batch: Batch, block_size: int) -> np.ndarray:
    """`[slices, max_blocks]`, padded with 0; only the blocks that hold tokens of this step or before."""
    used = [-(-piece.stop // block_size) for piece in batch.slices]
    tables = np.zeros((len(used), max(used)), np.int32)
    for row, (piece, blocks) in enumerate(zip(batch.slices, used, strict=True)):
        tables[row, :blocks] = piece.request.blocks[:blocks]
    return tables
