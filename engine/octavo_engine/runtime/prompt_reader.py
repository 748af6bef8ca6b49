"""Reads what is wanted of prompts while their hidden states and logits are there, and brings it to the host.

Logits come in pieces of a few rows: those of a whole prompt would be larger than the model. Of each row only the
likeliest are kept, and what the prompt's own next token has.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo_engine.batch import Batch, Known, Read
from octavo_engine.prompt_reading import HiddenSum, PromptLogprobs, PromptReading
from octavo_engine.request import Sampled
from octavo_engine.runtime.drawn import Draw
from octavo_engine.runtime.inputs import rows_to_read
from octavo_engine.runtime.transfers import Readback, to_device


class PromptReader:
    """Given a step's tensors as they are computed; used once."""

    def __init__(self, batch: Batch, device: torch.device) -> None:
        pairs = list(zip(batch.reading, rows_to_read(batch), strict=True))
        self._reads = batch.reading
        self._pooled = [rows for read, rows in pairs if not read.scores]
        scored = [read for read in batch.reading if read.scores]
        self._width = max((_width(read) for read in scored), default=0)
        following = [token for read in scored for token in read.request.tokens[read.start + 1 : read.stop + 1]]
        self._following = to_device([np.array(following, np.int64)], device)[0] if scored else None
        self._done = 0  # rows whose logits have come
        self._scores: list[tuple[Tensor, ...]] = []
        self._sums: list[Tensor] = []

    def take_states(self, hidden: Tensor) -> None:
        """All final hidden states of the step, `[tokens, hidden]`."""
        self._sums = [hidden[rows.start : rows.stop].sum(0, dtype=torch.float64) for rows in self._pooled]

    def take_logits(self, logits: Tensor) -> None:
        """The next rows to be scored, float32 `[rows, vocab]`, in the order of the plan's `scored`."""
        assert self._following is not None
        following = self._following[self._done : self._done + len(logits)]
        self._done += len(logits)
        logprobs = logits.log_softmax(-1)
        own = logprobs.gather(1, following[:, None])
        top = logprobs.topk(self._width)
        self._scores.append((own[:, 0], (logprobs > own).sum(-1) + 1, top.values, top.indices))

    def coming(self) -> Coming:
        """What has been read, on its way to the host."""
        columns = [torch.cat(parts) for parts in zip(*self._scores, strict=True)]
        return Coming(self._reads, Readback([*columns, *self._sums]), scored=bool(columns))


def _width(read: Read) -> int:
    """How many of the likeliest a request wants of each token."""
    return read.request.params.prompt_logprobs or 0


class Coming:
    """Readings that the host knows when the device is done with them."""

    def __init__(self, reads: Sequence[Read], coming: Readback, *, scored: bool) -> None:
        self._reads, self._coming, self._scored = reads, coming, scored

    def wait(self) -> list[PromptReading]:
        """One for each read, in order."""
        arrived = [tensor.numpy() for tensor in self._coming.wait()]
        columns, sums = (arrived[:4], arrived[4:]) if self._scored else ([], arrived)
        scores, states = _scores_of([read for read in self._reads if read.scores], columns), iter(sums)
        return [next(scores) if read.scores else HiddenSum(_as_array("d", next(states))) for read in self._reads]


def _scores_of(reads: Sequence[Read], columns: Sequence[npt.NDArray[np.generic]]) -> Iterator[PromptLogprobs]:
    """Each read's rows of the columns, and of the likeliest as many as it wants."""
    end = 0
    for read in reads:
        begin, end = end, end + read.stop - read.start
        own, ranks, top, top_ids = (column[begin:end] for column in columns)
        width = _width(read)
        yield PromptLogprobs(
            width,
            _as_array("f", own),
            _as_array("i", ranks),
            _as_array("f", top[:, :width]),
            _as_array("i", top_ids[:, :width]),
        )


def _as_array(code: str, values: npt.NDArray[np.generic]) -> array[Any]:
    return array(code, np.ascontiguousarray(values, np.dtype(code)).tobytes())


@dataclass(frozen=True, slots=True)
class LaunchedReading:
    """A launched step of which more is wanted than tokens."""

    drawn: Draw | Known
    coming: Coming

    def wait(self) -> list[Sampled]:
        """The outcomes of `batch.sampling`."""
        return self.drawn.wait()

    def readings(self) -> Sequence[PromptReading]:
        """Those of `batch.reading`."""
        return self.coming.wait()
