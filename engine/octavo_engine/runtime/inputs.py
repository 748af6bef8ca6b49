"""A batch as numbers, and the numbers as tensors. The same batch gives the same tensors; only what a step would copy
again is kept in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from octavo_engine.batch import Batch, Slice
from octavo_engine.kernels.attention import StepLayout
from octavo_engine.request import PROMISED
from octavo_engine.runtime.block_tables import BlockTables
from octavo_engine.runtime.transfers import to_device

NO_ROWS = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A step in numbers alone: whoever has the same weights and the same cache computes the same from it."""

    starts: npt.NDArray[np.int64]  # [sequences], tokens of each that are in the cache already
    counts: npt.NDArray[np.int64]  # [sequences], tokens to compute; those with one come first
    samples: npt.NDArray[np.int64]  # [sequences], of how many of its last tokens the logits give a token
    tokens: npt.NDArray[np.int64]  # [tokens], one sequence after the other
    tables: npt.NDArray[np.int32]  # [sequences, blocks], padded with 0
    scored: npt.NDArray[np.int64] = field(default_factory=lambda: NO_ROWS)  # [scored], of the step: more to project

    @property
    def num_unknown(self) -> int:
        """So many of the first tokens are single ones, of which the host does not know some yet; 0: it knows all."""
        singles = int(np.count_nonzero(self.counts == 1))
        return singles if singles and self.tokens[:singles].min() == PROMISED else 0


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model needs for one step, on its device."""

    tokens: torch.Tensor  # int64 [tokens]
    layout: StepLayout
    sampling_rows: torch.Tensor | None  # int64 [samples]: rows of the hidden states that give a next token; None: all
    scored_rows: torch.Tensor | None = None  # int64 [scored]: those whose logits tell of a prompt; None: there are none

    @property
    def samples(self) -> bool:
        """False for a step after which no sequence has a next token."""
        return self.sampling_rows is None or len(self.sampling_rows) > 0


@dataclass(frozen=True, slots=True)
class Promised:
    """Tokens of a step that the one before it has chosen, and that only the device knows."""

    places: npt.NDArray[np.int64]  # where they belong in the step's tokens
    rows: npt.NDArray[np.int64]  # of `tokens`, for each place
    tokens: torch.Tensor  # int64 [rows], on the device: what the step before chose


class InputBuilder:
    """Lays a batch's slices out one after another, in batch order (decodes first)."""

    def __init__(self, block_size: int, device: torch.device) -> None:
        self._block_size = block_size
        self._device = device
        self._tables = BlockTables()

    def build(self, batch: Batch) -> StepInputs:
        """The tensors of a batch that has at least one slice."""
        return self.inputs(self.plan(batch))

    def plan(self, batch: Batch) -> StepPlan:
        """The batch in numbers."""
        requests, firsts, sizes, samples, _ = zip(*batch.slices, strict=True)  # columns: most of the work is in these
        starts, counts = np.array(firsts, np.int64), np.array(sizes, np.int64)
        longest = int((starts + counts).max())
        tables = self._tables.gather(requests, -(-longest // self._block_size))
        tokens, scored = _tokens(batch.slices, counts.cumsum()), scored_rows(batch) if batch.reading else NO_ROWS
        outcomes = np.array(samples, np.int64)
        first, end = batch.num_singles, batch.num_continuing
        if first < end:
            outcomes[first:end] = [piece.num_outcomes for piece in batch.slices[first:end]]
        return StepPlan(starts, counts, outcomes, tokens, tables, scored)

    def inputs(self, plan: StepPlan, promised: Promised | None = None) -> StepInputs:
        """The tensors of a plan."""
        return inputs_of(plan, self._block_size, self._device, promised)


def inputs_of(plan: StepPlan, block_size: int, device: torch.device, promised: Promised | None = None) -> StepInputs:
    """A plan's tensors on that device, with the tokens that were promised in their places."""
    starts, counts, sequences = plan.starts, plan.counts, len(plan.starts)
    stops, ends = starts + counts, counts.cumsum()
    singles = int(np.count_nonzero(counts == 1))
    positions = _positions(starts, counts, ends, singles)
    blocks, offsets = np.divmod(positions, block_size)
    owners = np.arange(sequences) if singles == sequences else np.repeat(np.arange(sequences), counts)
    every_row = ends[-1] == plan.samples.sum()
    arrays = (
        plan.tokens,
        positions,
        plan.tables[owners, blocks] * np.int64(block_size) + offsets,
        np.concatenate(([0], ends)).astype(np.int32),
        stops.astype(np.int32),
        plan.tables,
        *(() if every_row else (_last_rows(ends, plan.samples),)),
        *((plan.scored,) if len(plan.scored) else ()),
        *((promised.places, promised.rows) if promised else ()),
    )
    tokens, placed, slots, query_start, context_lens, tables, *others = to_device(arrays, device)
    if promised:
        *others, places, rows = others
        tokens.index_copy_(0, places, promised.tokens.index_select(0, rows))
    layout = StepLayout(
        positions=placed,
        slots=slots,
        query_start=query_start,
        context_lens=context_lens,
        block_tables=tables,
        max_query=int(counts.max()),
        max_context=int(stops.max()),
        num_decodes=singles,
    )
    rows_of = iter(others)
    sampling = None if every_row else next(rows_of)
    return StepInputs(tokens, layout, sampling, next(rows_of) if len(plan.scored) else None)


def _positions(
    starts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], singles: int
) -> npt.NDArray[np.int64]:
    """Of each token, its index in its own sequence."""
    if singles == len(starts):
        return starts
    return np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)


def _last_rows(ends: npt.NDArray[np.int64], samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The rows of so many last tokens of each sequence."""
    if samples.max() <= 1:
        rows: npt.NDArray[np.int64] = ends[samples > 0] - 1
    else:
        stops = samples.cumsum()
        rows = np.arange(stops[-1]) + np.repeat(ends - stops, samples)
    return rows


def _tokens(slices: Sequence[Slice], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Token ids; single tokens, which are most slices and come first, all at once."""
    tokens = np.empty(ends[-1], np.int64)
    singles = int(np.count_nonzero(np.diff(ends, prepend=0) == 1))
    tokens[:singles] = [request.tokens[start] for request, start, *_ in slices[:singles]]
    for piece, end in zip(slices[singles:], ends[singles:].tolist(), strict=True):
        tokens[end - piece.count : end] = piece.tokens
    return tokens


def rows_to_read(batch: Batch) -> list[range]:
    """Of each of `batch.reading`, the rows of its positions among the step's tokens."""
    ends = accumulate(piece.count for piece in batch.slices)
    first = {piece.request: end - piece.stop for piece, end in zip(batch.slices, ends, strict=True)}  # of position 0
    return [range(first[read.request] + read.start, first[read.request] + read.stop) for read in batch.reading]


def scored_rows(batch: Batch) -> npt.NDArray[np.int64]:
    """The rows whose logits are read, one request after the other."""
    pairs = zip(batch.reading, rows_to_read(batch), strict=True)
    return np.concatenate([NO_ROWS, *(np.arange(rows.start, rows.stop) for read, rows in pairs if read.scores)])
