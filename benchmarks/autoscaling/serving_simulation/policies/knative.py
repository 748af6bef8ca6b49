"""Average concurrency with a panic window, after the rules of Knative's pod autoscaler (KPA) and its defaults.

Concurrency is running plus waiting, averaged over a window, against 70 % of what a replica runs at once
(container-concurrency-target-percentage). Rules from the documentation of Knative Serving's autoscaler and its
pkg/autoscaler/scaling; the code is ours. Scaling to zero is left out, as every policy here keeps a minimum.
"""

from __future__ import annotations

import math
from collections import deque

from .view import Choice, View

STABLE_SECONDS = 60.0
PANIC_SECONDS = 6.0  # panic-window-percentage 10
PANIC_THRESHOLD = 2.0  # panic-threshold-percentage 200
UTILISATION = 0.7
MAX_UP = 1000.0
MAX_DOWN = 2.0


class Knative:
    """Running plus waiting over a target concurrency. `seats` is what a replica is said to run at once."""

    name = "Knative, concurrency"
    period = 2.0

    def __init__(self, minimum: int, maximum: int, seats: int) -> None:
        self._minimum = minimum
        self._maximum = maximum
        self._target = UTILISATION * seats
        self._seen: deque[tuple[float, float]] = deque()
        self._panic_since: float | None = None
        self._panic_count = 0

    def choose(self, view: View, now: float) -> Choice:
        """One tick."""
        if not view.loads or not view.ready:  # no data: the last decision stands
            return Choice(view.replicas)
        mean = sum(load.running + load.waiting for load in view.loads) / len(view.loads)
        self._seen.append((now, mean * view.ready))  # silent pods are taken to be like the others
        while self._seen[0][0] <= now - STABLE_SECONDS:
            self._seen.popleft()
        stable, panic = self._wanted(STABLE_SECONDS, view, now), self._wanted(PANIC_SECONDS, view, now)
        count = self._bounded_by_panic(stable, panic, view.ready, now)
        return Choice(min(max(count, self._minimum), self._maximum))

    def _wanted(self, window: float, view: View, now: float) -> int:
        recent = [value for when, value in self._seen if when > now - window]
        count = math.ceil(sum(recent) / len(recent) / self._target)
        return min(max(count, math.floor(view.ready / MAX_DOWN)), math.ceil(MAX_UP * view.ready))

    def _bounded_by_panic(self, stable: int, panic: int, ready: int, now: float) -> int:
        """In panic the count never falls; it ends a stable window after the last look over the threshold."""
        if panic / ready >= PANIC_THRESHOLD:
            self._panic_since = now
        elif self._panic_since is not None and now - self._panic_since > STABLE_SECONDS:
            self._panic_since, self._panic_count = None, 0
        if self._panic_since is None:
            return stable
        self._panic_count = max(self._panic_count, stable, panic)
        return self._panic_count
