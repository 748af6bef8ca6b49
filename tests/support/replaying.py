"""Recording and replaying without a device: a replay computes again what was recorded, from the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from octavo_engine.runtime.graph_capture import NotRecorded
from octavo_engine.runtime.graphs import GraphedSteps, Recorder, Recording
from octavo_engine.runtime.runner import Steps


class Replaying:
    """The plain twin of a recorder. Counts replays, by the rows that each computes."""

    def __init__(self) -> None:
        self.replays: dict[int, int] = {}

    def record(self, compute: Callable[[], torch.Tensor], /) -> Recording:
        compute()  # as where kernels are compiled first
        result = compute().clone()

        def replay() -> None:
            self.replays[len(result)] = self.replays.get(len(result), 0) + 1
            result.copy_(compute())

        return Recording(result, replay)


class Unwilling(Replaying):
    """Cannot record decodes of those sizes; without any, none. It computes as often as one that can, since other ranks
    do."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self._sizes = sizes

    def record(self, compute: Callable[[], torch.Tensor], /) -> Recording:
        recording = super().record(compute)
        if self._sizes and len(recording.result) not in self._sizes:
            return recording
        raise NotRecorded.because(torch.OutOfMemoryError("no memory is left"))


def graphed(steps: Steps, sizes: Sequence[int], recorder: Recorder, max_context: int = 512) -> GraphedSteps:
    """Steps with decodes of those sizes to record, over a cache whose last block nobody else uses."""
    return GraphedSteps.over(steps, sizes, recorder, max_context=max_context)
