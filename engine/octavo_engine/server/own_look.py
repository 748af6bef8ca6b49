"""What limits this very engine, for `/load`: `octavo doctor`'s first sentence, from the engine's own metrics.

Each look is compared with one some seconds before, so that whoever asks often, as a scaler does, hears of the present.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client.registry import Collector

from octavo_engine.diagnosis.diagnose import diagnose
from octavo_engine.diagnosis.facts import between
from octavo_engine.diagnosis.findings import Limiter
from octavo_engine.diagnosis.scrape import Scrape

LEAST_SECONDS = 4.0
"""Between two looks: less would tell of single steps, and a scaler asks every five seconds."""
MOST_SECONDS = 60.0
"""What happened in more would be no longer now."""


class OwnLook:
    """Looks at `metrics` when it is asked; one thread asks. `clock` is in seconds."""

    def __init__(self, metrics: Collector, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._before: Scrape | None = None
        self._found: dict[str, str] | None = None

    def limit(self) -> dict[str, str] | None:
        """The limiter and its sentence; None while requests are what is missing, and before there were two looks."""
        now = self._clock()
        if self._before is not None and now - self._before.at < LEAST_SECONDS:
            return self._found
        look = Scrape.of(self._metrics.collect(), now)
        self._found = _limit_between(self._before, look)
        self._before = look
        return self._found


def _limit_between(before: Scrape | None, now: Scrape) -> dict[str, str] | None:
    if before is None or now.at - before.at > MOST_SECONDS:
        return None
    first = diagnose(between([before, now]))[0]
    return None if first.limiter is Limiter.LOAD else {"limiter": first.limiter.value, "message": first.sentence}
