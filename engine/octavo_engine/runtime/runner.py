"""Runs the model over a batch and samples: tensors, forward, logits, tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from octavo_engine.batch import Batch
from octavo_engine.kernels.attention import StepLayout
from octavo_engine.request import Sampled
from octavo_engine.runtime.inputs import InputBuilder, StepInputs, StepPlan
from octavo_engine.runtime.kv_store import LayerCache
from octavo_engine.runtime.sampler import Sampler


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
        model: Model,
        caches: Sequence[LayerCache],
        *,
        block_size: int,
        device: torch.device,
        sampler: Sampler,
        tell: Callable[[StepPlan], None] | None = None,
    ) -> None:
        self._model = model
        self._caches = caches
        self._inputs = InputBuilder(block_size, device)
        self._sampler = sampler
        self._tell = tell

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Sampled]:
        """Compute the batch; one outcome for each of `batch.sampling`, in that order."""
        plan = self._inputs.plan(batch)
        if self._tell is not None:
            self._tell(plan)
        logits = step_logits(self._model, self._caches, self._inputs.inputs(plan))
        if logits is None:
            return []
        return self._sampler.sample(logits, [piece.request for piece in batch.slices if piece.samples])


def step_logits(model: Model, caches: Sequence[LayerCache], inputs: StepInputs) -> torch.Tensor | None:
    """Compute one step; float32 `[samples, vocab]`, or None where nothing is sampled."""
    hidden = model.forward(inputs.tokens, inputs.layout, caches)
    if not inputs.samples:
        return None
    return model.logits(hidden if inputs.sampling_rows is None else hidden[inputs.sampling_rows])
