"""Recording and replaying without a device: a replay computes again what was recorded, from the same tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from octavo_engine.runtime.graph_inputs import GraphShape
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


class Unwilling:
    """Can record nothing."""

    def record(self, compute: Callable[[], torch.Tensor], /) -> Recording:
        compute()
        raise torch.OutOfMemoryError("no memory is left")


def graphed(steps: Steps, sizes: Sequence[int], recorder: Recorder, max_context: int = 512) -> GraphedSteps:
    """Steps with decodes of those sizes to record, over a cache whose last block nobody else uses."""
    blocks, block_size = steps.caches[0][0].shape[:2]
    shape = GraphShape(sequences=sizes[-1], max_context=max_context, block_size=block_size, spare_block=blocks - 1)
    return GraphedSteps(steps, shape, sizes, recorder)
