"""What the client itself costs: a load test that is late measures itself. Told in each report.

The loop's lag is how much later than asked a timer fires: as long, at most, does a chunk that has come wait to be seen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from octavo_engine.bench.quantiles import quantile

EVERY_SECONDS = 0.02
LATE_SECONDS = 0.005  # of lag, at P99: above, the figures of single tokens are in doubt
BUSY = 0.8  # of one processor: above, arrivals wait for each other


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """`cpu` is the share of one processor; lags are in seconds."""

    cpu: float
    lag_p99: float
    lag_max: float

    @property
    def doubt(self) -> str | None:
        """Why the client may have been the bottleneck, if it may."""
        if self.cpu > BUSY:
            return f"the client used {100 * self.cpu:.0f} % of a processor: share the load among several clients"
        if self.lag_p99 > LATE_SECONDS:
            return (
                f"the client saw chunks up to {1e3 * self.lag_p99:.1f} ms late (P99): give it a processor of its own,"
                " or share the load among several clients"
            )
        return None


@dataclass(slots=True)
class Meter:
    """Watches this process and its loop while it is inside `watching`."""

    lags: list[float] = field(default_factory=list)
    _cpu: float = 0.0
    _wall: float = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """From here to the end of the block."""
        cpu, wall = time.process_time(), time.monotonic()
        timer = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            timer.cancel()
            self._cpu, self._wall = time.process_time() - cpu, time.monotonic() - wall

    def cost(self) -> Cost:
        """What was seen."""
        lags = sorted(self.lags) or [0.0]
        return Cost(cpu=self._cpu / max(self._wall, 1e-9), lag_p99=quantile(lags, 0.99), lag_max=lags[-1])

    async def _tick(self) -> None:
        while True:
            asked = time.monotonic() + EVERY_SECONDS
            await asyncio.sleep(EVERY_SECONDS)
            self.lags.append(max(0.0, time.monotonic() - asked))
