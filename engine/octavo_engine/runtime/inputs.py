"""A batch as tensors. The same batch gives the same tensors; only what a step would copy again is kept in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from octavo_engine.batch import Batch, Slice
from octavo_engine.kernels.attention import StepLayout
from octavo_engine.runtime.block_tables import BlockTables


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model needs for one step, on its device."""

    tokens: torch.Tensor  # int64 [tokens]
    layout: StepLayout
    sampling_rows: torch.Tensor | None  # int64 [samples]: rows of the hidden states that give a next token; None: all


class InputBuilder:
    """Lays a batch's slices out one after another, in batch order (decodes first)."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        self._block_size = block_size
        self._device = device
        self._tables = BlockTables()

    def build(self, batch: Batch) -> StepInputs:
        """The tensors of a batch that has at least one slice."""
        requests, firsts, sizes, samples = zip(*batch.slices, strict=True)  # columns: most of the work is in these
        size, owner_ids = self._block_size, np.arange(len(requests))
        starts, counts = np.array(firsts, np.int64), np.array(sizes, np.int64)
        stops = starts + counts
        ends = counts.cumsum()
        singles, longest = int(np.count_nonzero(counts == 1)), int(stops.max())
        tables = self._tables.gather(requests, -(-longest // size))
        positions = _positions(starts, counts, ends, singles)
        blocks, offsets = np.divmod(positions, size)
        owners = owner_ids if singles == len(requests) else np.repeat(owner_ids, counts)
        layout = StepLayout(
            positions=self._tensor(positions),
            slots=self._tensor(tables[owners, blocks] * np.int64(size) + offsets),
            query_start=self._tensor(np.concatenate(([0], ends)).astype(np.int32)),
            context_lens=self._tensor(stops.astype(np.int32)),
            block_tables=self._tensor(tables),
            max_query=int(counts.max()),
            max_context=longest,
            num_decodes=singles,
        )
        return StepInputs(
            self._tensor(_tokens(batch.slices, ends, singles)), layout, self._sampling_rows(samples, ends)
        )

    def _sampling_rows(self, samples: Sequence[bool], ends: npt.NDArray[np.int64]) -> torch.Tensor | None:
        if ends[-1] == len(samples) and all(samples):
            return None
        return self._tensor(ends[list(samples)] - 1)

    def _tensor(self, array: npt.NDArray[np.generic]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)


def _positions(
    starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], singles: int
) -> npt.NDArray[np.int64]:
    """Of each token, its index in its own sequence."""
    if singles == len(starts):
        return starts
    return np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)


def _tokens(slices: Sequence[Slice], ends: npt.NDArray[np.int64], singles: int) -> npt.NDArray[np.int64]:
    """Token ids; single tokens, which are most slices, all at once."""
    tokens = np.empty(ends[-1], np.int64)
    tokens[:singles] = [request.tokens[start] for request, start, _, _ in slices[:singles]]
    for (request, start, count, _), end in zip(slices[singles:], ends[singles:].tolist(), strict=True):
        tokens[end - count : end] = request.tokens[start : start + count]
    return tokens
