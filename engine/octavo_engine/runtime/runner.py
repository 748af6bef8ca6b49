"""Launches a batch: tensors, forward, logits, tokens. Where a device computes, the host goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from octavo_engine.batch import SCORED_ROWS, Batch, Known
from octavo_engine.kernels.attention import StepLayout
from octavo_engine.request import PROMISED, Request, Sampled
from octavo_engine.runtime.drawn import Draw
from octavo_engine.runtime.inputs import InputBuilder, Promised, StepInputs, StepPlan
from octavo_engine.runtime.kv_store import LayerCache
from octavo_engine.runtime.prompt_reader import LaunchedReading, PromptReader
from octavo_engine.runtime.sampler import Sampler
from octavo_engine.turns import Turns


class Reader(Protocol):
    """Whoever wants more of a step than its tokens. What it is given is not kept: the next step may be computed into
    the same memory."""

    def take_states(self, hidden: torch.Tensor, /) -> None:
        """The final hidden states of all tokens, `[tokens, hidden]`."""

    def take_logits(self, logits: torch.Tensor, /) -> None:
        """float32 `[rows, vocab]`, of the next of the step's scored rows."""


class Compute(Protocol):
    """Computes a step."""

    def __call__(self, inputs: StepInputs, reader: Reader | None = None, /) -> torch.Tensor | None:
        """The step's logits, float32 `[samples, vocab]`, or None where nothing is sampled. They are not kept either."""


class Model(Protocol):
    """A decoder."""

    def forward(
        self, tokens: torch.Tensor, layout: StepLayout, caches: Sequence[LayerCache], kept: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Hidden states `[kept or tokens, hidden]`, of the rows `kept` (int64, rising) or of all; writes this step's K
        and V into `caches`."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 `[n, vocab]` from `[n, hidden]`."""


class Runner:
    """One model on one device with its cache.

    `tell`: is given each step before it is computed; how the model's other ranks learn of it, where there are some.
    `spread`: is given tokens, int64 on the device, that a told step promised; how the other ranks get them.
    `turns`: is told when the model is computed, where that waits for others.
    """

    def __init__(
        self,
        compute: Compute,
        *,
        block_size: int,
        device: torch.device,
        sampler: Sampler,
        tell: Callable[[StepPlan], None] | None = None,
        spread: Callable[[torch.Tensor], None] | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._compute = compute
        self._turns = turns
        self._inputs = InputBuilder(block_size, device)
        self._device = device
        self._sampler = sampler
        self._tell, self._spread = tell, spread
        self._chosen: Draw | None = None  # by the step before
        self._requests: list[Request] = []  # of each row of `_chosen`

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Draw | Known | LaunchedReading:
        """Begin to compute the batch, the steps before it being launched, but perhaps not computed."""
        plan = self._inputs.plan(batch)
        if self._tell is not None:
            self._tell(plan)
        unknown = plan.num_unknown  # before a host writes the tokens into the plan's own memory
        inputs = self._inputs.inputs(plan, self._promised(batch, plan))
        if self._spread is not None and unknown:
            self._spread(inputs.tokens[:unknown])
        if not batch.reading:
            return self._drawn(self._computed(inputs, None), batch)
        reader = PromptReader(batch, self._device)
        drawn = self._drawn(self._computed(inputs, reader), batch)
        return LaunchedReading(drawn, reader.coming())

    def _computed(self, inputs: StepInputs, reader: Reader | None) -> torch.Tensor | None:
        with nullcontext() if self._turns is None else self._turns.together():
            return self._compute(inputs, reader)

    def _drawn(self, logits: torch.Tensor | None, batch: Batch) -> Draw | Known:
        """The tokens of a step, from its logits."""
        if logits is None:
            return Known([])
        if not batch.num_drafted:
            self._requests = [piece.request for piece in batch.sampling]
            self._chosen = self._sampler.sample(logits, self._requests)
        else:
            rows = [
                (piece.request, piece.draft[:ahead]) for piece in batch.sampling for ahead in range(piece.num_outcomes)
            ]
            self._requests = [request for request, _ in rows]
            self._chosen = self._sampler.sample(logits, self._requests, [guessed for _, guessed in rows])
        return self._chosen

    def run(self, batch: Batch) -> list[Sampled]:
        """Compute the batch; the outcomes of each of `batch.sampling`, one after another."""
        return self.launch(batch).wait()

    def _promised(self, batch: Batch, plan: StepPlan) -> Promised | None:
        """The tokens that the step before chose, where the host does not know them yet: they are single ones."""
        if not (singles := plan.num_unknown):
            return None
        assert self._chosen is not None
        (places,) = np.nonzero(plan.tokens[:singles] == PROMISED)
        rows = {request: row for row, request in enumerate(self._requests)}
        found = [rows[batch.slices[place].request] for place in places.tolist()]
        return Promised(places, np.array(found, np.int64), self._chosen.tokens)


@dataclass(frozen=True, slots=True)
class Steps:
    """A model over its cache, a step at a time, each computed as it comes.

    alone: no other rank has a part of the layers. Ranks add up the same rows, and only one of them knows what is read.
    """

    model: Model
    caches: Sequence[LayerCache]
    alone: bool

    def __call__(self, inputs: StepInputs, reader: Reader | None = None, /) -> torch.Tensor | None:
        """float32 `[samples, vocab]`, or None where nothing is sampled.

        Scored rows are projected whether somebody reads them or not: ranks that share the vocabulary do it together.
        """
        if self.alone and reader is None and inputs.scored_rows is None:  # nobody looks at a row that gives no token
            hidden = self.model.forward(inputs.tokens, inputs.layout, self.caches, inputs.sampling_rows)
            return self.model.logits(hidden) if inputs.samples else None
        hidden = self.model.forward(inputs.tokens, inputs.layout, self.caches)
        if reader is not None:
            reader.take_states(hidden)
        if inputs.scored_rows is not None:
            self._score(hidden, inputs.scored_rows, reader)
        if not inputs.samples:
            return None
        return self.model.logits(hidden if inputs.sampling_rows is None else hidden[inputs.sampling_rows])

    def _score(self, hidden: torch.Tensor, rows: torch.Tensor, reader: Reader | None) -> None:
        """Project the rows that tell of prompts, a few at a time."""
        for begin in range(0, len(rows), SCORED_ROWS):
            logits = self.model.logits(hidden[rows[begin : begin + SCORED_ROWS]])
            if reader is not None:
                reader.take_logits(logits)
