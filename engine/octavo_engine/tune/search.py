"""The search: each candidate is timed, and the fastest stays. Knows neither kernels nor devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from octavo_engine.kernels.triton.targets import Launch, Row

Seconds = Callable[[Launch], float]
"""How long the work takes with a launch; infinity if it cannot be launched so."""

WORTH_IT = 0.98  # of the usual launch's time: what is not faster than that is noise


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table: what it is for, what is tried, and how a try is timed."""

    kernel: str
    size: int
    capability: int
    launches: Sequence[Launch]  # the usual one first
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has found."""

    case: Case
    launch: Launch
    seconds: float
    usual_seconds: float

    @property
    def row(self) -> Row:
        """For the table."""
        return Row(self.case.kernel, self.case.capability, self.case.size, self.launch)

    @property
    def gain(self) -> float:
        """How many times faster than the usual launch; infinite where that cannot be launched."""
        return self.usual_seconds / self.seconds

    def __str__(self) -> str:
        blocks = " ".join(f"{name}={size}" for name, size in self.launch.blocks.items())
        launch = f"{self.launch.warps} warps, {self.launch.stages} stages {blocks}".rstrip()
        return (
            f"{self.case.kernel} {self.case.size}: {self.seconds * 1e6:.1f} us, {self.gain:.2f}x the usual launch,"
            f" of {len(self.case.launches)}: {launch}"
        )


def search(cases: Iterable[Case]) -> Iterator[Found]:
    """One after the other. A case in which nothing can be launched gives nothing."""
    for case in cases:
        times = [case.seconds(launch) for launch in case.launches]
        best = min(range(len(times)), key=times.__getitem__)
        if times[best] > times[0] * WORTH_IT:
            best = 0
        if math.isfinite(times[best]):
            yield Found(case, case.launches[best], times[best], times[0])
