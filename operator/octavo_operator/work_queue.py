"""A keyed work queue: each key waits at most once, runs at most once at a time, and fails on its own schedule.

That is what makes events cheap (a hundred of them are one reconcile) and a poisoned resource harmless (its growing
delay is its own). After a run a key rests for a moment: what it has just written comes back as events, one for each
object, and one look at all of them is enough. Keys come in the order in which they were added, but one that a person
waits for has a head start: in a storm, what is newly asked for goes before the echoes of what was done. Times come
from the event loop's clock.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

K = TypeVar("K")

FIRST_DELAY = 0.5
LONGEST_DELAY = 300.0
REST_SECONDS = 0.1
STORM, STORM_SECONDS = 4, 2.0
"""So many others that are newly asked for within this time are a storm."""
HEAD_START_SECONDS = 5.0
"""So much later an urgent key may come and still go first; nobody waits longer than that for all of them."""


class WorkQueue(Generic[K]):
    """Keys to be worked on by `run_worker` tasks. Single event loop only.

    Args:
        waited: told, when a key's turn comes, how many seconds it waited for a worker.
    """

    def __init__(self, waited: Callable[[float], None] = lambda _: None) -> None:
        self._waited = waited
        self._since: dict[K, float] = {}
        self._ready: asyncio.PriorityQueue[tuple[float, int, K]] = asyncio.PriorityQueue()
        self._number = itertools.count()
        self._waiting: dict[K, float] = {}
        self._running: set[K] = set()
        self._again: dict[K, bool] = {}
        self._urgent: dict[K, float] = {}
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K, urgent: bool = False) -> None:
        """Has `key` worked on soon; during its own run or rest, once more afterwards. A pending retry comes forward."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if urgent:
            self._note(key)
        if key in self._running:
            self._again[key] = urgent or self._again.get(key, False)
            return
        now = asyncio.get_running_loop().time()
        turn = now - HEAD_START_SECONDS if urgent else now
        if turn < self._waiting.get(key, math.inf):
            self._waiting[key] = turn
            self._since.setdefault(key, now)
            self._ready.put_nowait((turn, next(self._number), key))

    def crowded(self, key: K) -> bool:
        """Whether many others than `key` were urgent a moment ago."""
        since = asyncio.get_running_loop().time() - STORM_SECONDS
        return sum(then > since for other, then in self._urgent.items() if other != key) >= STORM

    def _note(self, key: K) -> None:
        """Remembers the last few urgent keys: enough to tell a storm, whoever asks."""
        self._urgent.pop(key, None)
        self._urgent[key] = asyncio.get_running_loop().time()
        if len(self._urgent) > STORM + 1:
            del self._urgent[next(iter(self._urgent))]

    def add_later(self, key: K, seconds: float) -> None:
        """Has `key` worked on after a delay, unless something adds it before."""
        if key in self._timers or key in self._waiting:
            return
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self._due, key)

    def failed(self, key: K, at_least: float = 0.0) -> float:
        """Schedules the retry of a failed key; returns its delay in seconds: doubling, jittered, bounded."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        grown: float = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(count - 1, 30))
        delay = max(at_least, grown * random.uniform(0.8, 1.2))  # noqa: S311 - jitter
        self.add_later(key, delay)
        return delay

    def succeeded(self, key: K) -> None:
        """Forgets the key's failures."""
        self._failures.pop(key, None)

    async def run_worker(self, work: Callable[[K], Awaitable[None]]) -> None:
        """Works on keys until cancelled. `work` handles its own errors."""
        while True:
            turn, _, key = await self._ready.get()
            if self._waiting.get(key) != turn:
                continue  # it became urgent, and has had its turn
            del self._waiting[key]
            self._running.add(key)
            self._waited(asyncio.get_running_loop().time() - self._since.pop(key))
            try:
                await work(key)
            finally:
                asyncio.get_running_loop().call_later(REST_SECONDS, self._rested, key)

    def _rested(self, key: K) -> None:
        self._running.discard(key)
        if key in self._again:
            self.add(key, urgent=self._again.pop(key))

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)
