"""Runs the model over a batch and samples: tensors, forward, logits, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from octavo_engine.batch import Batch
from octavo_engine.kernels.attention import StepLayout
from octavo_engine.request import Sampled
from octavo_engine.runtime.inputs import InputBuilder
from octavo_engine.runtime.kv_store import LayerCache
from octavo_engine.runtime.sampler import Sampler


class Model(Protocol):
    """A decoder."""

    def forward(self, tokens: torch.Tensor, layout: StepLayout, caches: Sequence[LayerCache]) -> torch.Tensor:
        """Hidden states `[tokens, hidden]`; writes this step's K and V into `caches`."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 `[n, vocab]` from `[n, hidden]`."""


class Runner:
    """One model on one device with its cache."""

    def __init__(
        self,
        model: Model,
        caches: Sequence[LayerCache],
        *,
        block_size: int,
        device: torch.device,
        sampler: Sampler,
    ) -> None:
        self._model = model
        self._caches = caches
        self._inputs = InputBuilder(block_size, device)
        self._sampler = sampler

    @torch.inference_mode()
    def run(self, batch: Batch) -> list[Sampled]:
        """Compute the batch; one outcome for each of `batch.sampling`, in that order."""
        inputs = self._inputs.build(batch)
        hidden = self._model.forward(inputs.tokens, inputs.layout, self._caches)
        requests = [piece.request for piece in batch.slices if piece.samples]
        if not requests:
            return []
        rows = hidden if inputs.sampling_rows is None else hidden[inputs.sampling_rows]
        return self._sampler.sample(self._model.logits(rows), requests)
