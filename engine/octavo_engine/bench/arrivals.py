"""When conversations begin: as a client is free (closed loop), or by a clock of their own (open loop). Pure.

In a closed loop a slow server gets less load, so its queue never grows: it shows throughput at a given concurrency. An
open loop asks as users do, who do not wait for each other: it shows what happens when more comes than can be served.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from octavo_engine.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many conversations at once, each followed by the next."""

    concurrency: int

    def __str__(self) -> str:
        return f"closed loop, {self.concurrency} at once"


@dataclass(frozen=True, slots=True)
class Steady:
    """Random arrivals at `rate` a second. `burstiness` is the shape of the gamma distribution of the gaps: 1 makes a
    Poisson process, less comes in bursts, more is more even."""

    rate: float
    burstiness: float = 1.0

    def offsets(self, rng: random.Random) -> Iterator[float]:
        """Seconds from the beginning, rising, without end."""
        at = 0.0
        while True:
            at += rng.gammavariate(self.burstiness, 1 / (self.rate * self.burstiness))
            yield at

    def __str__(self) -> str:
        kind = "Poisson" if self.burstiness == 1 else f"gamma (burstiness {self.burstiness:g})"
        return f"{kind}, {self.rate:g}/s"


@dataclass(frozen=True, slots=True)
class Ramp:
    """A Poisson process whose rate goes evenly from `first` to `last`, both a second, in `seconds`, and stays there."""

    first: float
    last: float
    seconds: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read FIRST:LAST:SECONDS; raises InvalidConfiguration."""
        try:
            first, last, seconds = (float(part) for part in text.split(":"))
        except ValueError:
            first = last = seconds = -1.0
        if not (0 <= first < math.inf and 0 < last < math.inf and 0 < seconds < math.inf):
            raise InvalidConfiguration(
                f"--ramp is {text!r}; it must be FIRST:LAST:SECONDS, such as 1:20:60 for one a second at first and 20"
                " after a minute"
            )
        return cls(first, last, seconds)

    def offsets(self, rng: random.Random) -> Iterator[float]:
        """Seconds from the beginning, rising, without end: a process of rate 1 in the time that the ramp has spent."""
        spent = 0.0
        while True:
            spent += rng.expovariate(1.0)
            yield self.when(spent)

    def when(self, expected: float) -> float:
        """The time until which that many arrivals are expected: the inverse of the rate's integral."""
        slope = (self.last - self.first) / self.seconds
        whole = (self.first + self.last) / 2 * self.seconds
        if expected >= whole:
            return self.seconds + (expected - whole) / self.last
        root = math.sqrt(max(0.0, self.first**2 + 2 * slope * expected))
        return 2 * expected / (self.first + root) if self.first + root else 0.0  # right for a slope of 0, too

    def __str__(self) -> str:
        return f"ramp from {self.first:g}/s to {self.last:g}/s in {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class Replay:
    """The arrivals of a trace, in seconds from its first; `speed` 2 takes half the time."""

    times: Sequence[float]
    speed: float = 1.0

    def offsets(self, rng: random.Random) -> Iterator[float]:  # noqa: ARG002 (nothing is drawn)
        """Seconds from the beginning, rising, once."""
        return (at / self.speed for at in self.times)

    def __str__(self) -> str:
        return f"{len(self.times):,} arrivals of a trace" + (
            f", {self.speed:g} times as fast" if self.speed != 1 else ""
        )


OpenLoop = Steady | Ramp | Replay
Arrivals = ClosedLoop | OpenLoop
