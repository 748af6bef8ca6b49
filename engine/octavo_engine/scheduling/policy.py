"""What `--scheduling-policy` chooses: who is served before whom, as values and one queue. Every name is spelled here.

Ageing needs no clock. A request's place is a moment: when it arrived, and later by `ageing_seconds` for each level of
priority. Places do not move as time passes, so a heap keeps them, and nobody is ever overtaken by all who come after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from octavo_engine.request import Request
from octavo_engine.scheduling.cache_aware import CacheAwareQueue
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.waiting import RankedQueue, WaitingQueue

PolicyName = Literal["fcfs", "cache-aware", "priority"]
Rank = tuple[float, int]
"""The smaller is served first, and loses its blocks last; the number of its arrival comes second, and is unique."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One order of service. As it is: first come, first served.

    `level_seconds`: by how much one level of priority moves a request's place; None: priorities do not count.
    `window_seconds`: how much later one may have come who is admitted earlier for its cached prefix; None: nobody is.
    """

    level_seconds: float | None = None
    window_seconds: float | None = None

    def rank(self, request: Request, number: int) -> Rank:
        """The rank of a request whose arrival has that number."""
        if self.level_seconds is None:
            return (0.0, number)
        return (request.arrival + request.priority * self.level_seconds, number)

    def make_queue(self, cache: KVCache) -> WaitingQueue:
        """The queue that is left in this order."""
        return RankedQueue() if self.window_seconds is None else CacheAwareQueue(cache, self.window_seconds)

    @property
    def preempts(self) -> bool:
        """May a waiting request take the place of a running one?"""
        return self.level_seconds is not None

    def outranks(self, request: Request, running: Request) -> bool:
        """May `request`, which waits, take the place of one that runs?

        Its priority has to be higher as such: what only age has brought forward waits for room, and gets it first.
        Nor does a newcomer push out one that age had brought forward.
        """
        return self.preempts and request.priority < running.priority and request.rank < running.rank


def make_policy(name: PolicyName, ageing_seconds: float) -> Policy:
    """The policy of that name. `ageing_seconds`: how much later an overtaker may have come, by level or at all."""
    match name:
        case "fcfs":
            return Policy()
        case "cache-aware":
            return Policy(window_seconds=ageing_seconds)
        case "priority":
            return Policy(level_seconds=ageing_seconds)
