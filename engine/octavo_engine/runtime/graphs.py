"""Steps of decodes, recorded once and replayed: the host gives a device one launch instead of hundreds.

A step with nothing but decodes is padded to a size that has been recorded. All others, and all until then, are computed
kernel by kernel. What records is behind a protocol, so that everything here is tried without a device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from octavo_engine.graph_sizes import fitting
from octavo_engine.kernels.recorded import RecordedNumbers
from octavo_engine.runtime.graph_inputs import GraphInputs, GraphShape
from octavo_engine.runtime.inputs import StepInputs
from octavo_engine.runtime.runner import Reader, Steps


class Recording(NamedTuple):
    """Work that a device can be given again, at once."""

    result: Tensor  # what each replay writes anew
    replay: Callable[[], None]  # reads the same memory as the work that was recorded; the host does not wait


class Recorder(Protocol):
    """Records work on a device."""

    def record(self, compute: Callable[[], Tensor], /) -> Recording:
        """Record what `compute` launches. It may run first, more than once, and raises whatever it raises then; raises
        NotRecorded where that went well and the recording does not."""


class Graph(NamedTuple):
    """A recorded step of one size."""

    numbers: RecordedNumbers
    recording: Recording


class GraphedSteps:
    """A model over its cache, a step at a time; decodes of recorded sizes are replayed.

    `sizes`: ascending; none is recorded yet. The head is not part of a recording: it is two launches, it would be
    computed for padding, too, and each size would keep float32 logits of its own.
    """

    def __init__(self, steps: Steps, shape: GraphShape, sizes: Sequence[int], recorder: Recorder) -> None:
        self.sizes = tuple(sizes)
        self._steps, self._recorder = steps, recorder
        self._device = steps.caches[0][0].device
        self._inputs = GraphInputs(shape, self._device)
        self._graphs: dict[int, Graph] = {}
        self._latest: int | None = None

    @classmethod
    def over(cls, steps: Steps, sizes: Sequence[int], recorder: Recorder, *, max_context: int) -> Self:
        """Of a cache whose last block nobody else uses; `max_context`: tokens of the longest sequence."""
        blocks, block_size = steps.caches[0][0].shape[:2]
        shape = GraphShape(sequences=sizes[-1], max_context=max_context, block_size=block_size, spare_block=blocks - 1)
        return cls(steps, shape, sizes, recorder)

    @property
    def recorded(self) -> list[int]:
        """The sizes that are replayed by now, ascending."""
        return sorted(self._graphs)

    @property
    def latest(self) -> str:
        """What was launched last, in words; any thread may look."""
        size = self._latest
        return "a step's kernels, one by one" if size is None else f"the CUDA graph of {size} sequences"

    @torch.inference_mode()
    def __call__(self, inputs: StepInputs, reader: Reader | None = None, /) -> Tensor | None:
        """float32 `[samples, vocab]`, or None where nothing is sampled."""
        self._latest = self._size_for(inputs)
        if self._latest is None:
            return self._steps(inputs, reader)
        graph = self._graphs[self._latest]
        assert reader is None, "of decodes nothing is read"
        self._inputs.fill(inputs)
        graph.numbers.update(inputs.layout.max_context)
        graph.recording.replay()
        return self._steps.model.logits(graph.recording.result[: len(inputs.tokens)])

    @torch.inference_mode()
    def record(self, size: int) -> None:
        """Record decodes of so many sequences; raises what the recorder raises, and then computes as before."""
        self._inputs.clear()
        numbers = RecordedNumbers(self._device)
        inputs, model, caches = self._inputs.of(size, numbers), self._steps.model, self._steps.caches
        recording = self._recorder.record(lambda: model.forward(inputs.tokens, inputs.layout, caches))
        self._graphs[size] = Graph(numbers, recording)

    def forget(self, size: int) -> None:
        """Compute decodes of so many sequences kernel by kernel again, if they are recorded; their memory is free."""
        self._graphs.pop(size, None)

    def forget_all(self) -> None:
        """Forget every size."""
        self._graphs.clear()

    def _size_for(self, inputs: StepInputs) -> int | None:
        """The size of the recorded step for a batch of decodes, each of which gives a next token.

        Only the smallest size that holds them: in a larger one padding would cost more than launches do. Ranks that
        have recorded the same decide the same: it follows from the plan of the step alone.
        """
        sequences = len(inputs.layout.context_lens)
        if inputs.sampling_rows is not None or inputs.layout.num_decodes != sequences:
            return None
        size = fitting(self.sizes, sequences)
        return size if size in self._graphs else None
