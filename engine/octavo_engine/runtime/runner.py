"""Launches a batch: tensors, forward, logits, tokens. Where a device computes, the host goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from octavo_engine.batch import Batch, Known
from octavo_engine.kernels.attention import StepLayout
from octavo_engine.request import PROMISED, Request, Sampled
from octavo_engine.runtime.drawn import Draw
from octavo_engine.runtime.inputs import InputBuilder, Promised, StepInputs, StepPlan
from octavo_engine.runtime.kv_store import LayerCache
from octavo_engine.runtime.sampler import Sampler

Compute = Callable[[StepInputs], torch.Tensor | None]
"""One step's logits, float32 `[samples, vocab]`, or None where nothing is sampled. They are not kept: the next step may
be computed into the same memory."""


class Model(Protocol):
    """A decoder."""

    def forward(self, tokens: torch.Tensor, layout: StepLayout, caches: Sequence[LayerCache]) -> torch.Tensor:
        """Hidden states `[tokens, hidden]`; writes this step's K and V into `caches`."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 `[n, vocab]` from `[n, hidden]`."""


class Runner:
    """One model on one device with its cache.

    `tell`: is given each step before it is computed; how the model's other ranks learn of it, where there are some.
    """

    def __init__(
        self,
        compute: Compute,
        *,
        block_size: int,
        device: torch.device,
        sampler: Sampler,
        tell: Callable[[StepPlan], None] | None = None,
    ) -> None:
        self._compute = compute
        self._inputs = InputBuilder(block_size, device)
        self._sampler = sampler
        self._tell = tell
        self._chosen: Draw | None = None  # by the step before
        self._requests: list[Request] = []  # of each row of `_chosen`

    @torch.inference_mode()
    def launch(self, batch: Batch) -> Draw | Known:
        """Begin to compute the batch, the steps before it being launched, but perhaps not computed."""
        plan = self._inputs.plan(batch)
        if self._tell is not None:
            self._tell(plan)
        logits = self._compute(self._inputs.inputs(plan, self._promised(batch, plan)))
        if logits is None:
            return Known([])
        self._requests = [piece.request for piece in batch.sampling]
        self._chosen = self._sampler.sample(logits, self._requests)
        return self._chosen

    def run(self, batch: Batch) -> list[Sampled]:
        """Compute the batch; one outcome for each of `batch.sampling`, in that order."""
        return self.launch(batch).wait()

    def _promised(self, batch: Batch, plan: StepPlan) -> Promised | None:
        """The tokens that the step before chose, where the host does not know them yet: they are single ones."""
        singles = plan.tokens[: batch.num_singles]
        if not len(singles) or singles.min() != PROMISED:
            return None
        assert self._chosen is not None
        (places,) = np.nonzero(singles == PROMISED)
        rows = {request: row for row, request in enumerate(self._requests)}
        found = [rows[batch.slices[place].request] for place in places.tolist()]
        return Promised(places, np.array(found, np.int64), self._chosen.tokens)


@dataclass(frozen=True, slots=True)
class Steps:
    """A model over its cache, a step at a time, each computed as it comes."""

    model: Model
    caches: Sequence[LayerCache]

    def __call__(self, inputs: StepInputs) -> torch.Tensor | None:
        """float32 `[samples, vocab]`, or None where nothing is sampled."""
        hidden = self.model.forward(inputs.tokens, inputs.layout, self.caches)
        if not inputs.samples:
            return None
        return self.model.logits(hidden if inputs.sampling_rows is None else hidden[inputs.sampling_rows])
