"""How long a device takes for a few launches, which take the host longer than the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources, PTXASError

WRITTEN_BYTES = 1 << 30  # half a millisecond: time for the host to be twenty launches ahead, and more than any cache
FIRST, LEAST, MOST = 3, 5, 200  # calls: to compile and to look, and then to measure


@dataclass(frozen=True)
class Stopwatch:
    """A Timer on a CUDA device.

    Before each call, memory is written: the device's caches then hold nothing of ours, as they would not between the
    layers of a model, and the launches are waiting when the device comes to them.
    """

    device: torch.device
    milliseconds: int  # of one measurement
    written_bytes: int = WRITTEN_BYTES
    written: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        written = torch.empty(self.written_bytes, dtype=torch.uint8, device=self.device)
        object.__setattr__(self, "written", written)

    def __call__(self, call: Callable[[], object]) -> float:
        """The median in seconds; infinity for what needs more shared memory or registers than the device has."""
        try:
            about = self._median(call, FIRST)
        except (OutOfResources, PTXASError):
            return math.inf
        return self._median(call, min(MOST, max(LEAST, int(self.milliseconds / 1e3 / about))))

    def _median(self, call: Callable[[], object], count: int) -> float:
        pairs = [self._timed(call) for _ in range(count)]
        torch.cuda.synchronize(self.device)
        milliseconds: float = median(begin.elapsed_time(end) for begin, end in pairs)
        return milliseconds / 1e3

    def _timed(self, call: Callable[[], object]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        self.written.zero_()
        begin.record()
        call()
        end.record()
        return begin, end
