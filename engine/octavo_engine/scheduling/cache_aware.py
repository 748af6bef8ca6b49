"""The longest cached prefix first; and who shares a prefix that is being computed waits for it.

A waiting request is known by its blocks' keys, one for each full block of its prompt. How much of it is cached is then
a binary search (`KVCache.count`), and who is to be looked at again when a block becomes findable is one entry of a
dictionary. No step looks at the whole queue: at most `LOOKS` requests for each question, the rest in the next steps.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from octavo_engine.request import EventKind, Request, WaitReason
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.request_heap import RequestHeap
from octavo_engine.scheduling.waiting import WaitingQueue

LOOKS = 64
MIN_SHARED_TOKENS = 64
"""Less is not worth a step's wait. Nor is a prefix that is less than half of what is to be computed."""


@dataclass(slots=True, eq=False)
class Place:
    """What the queue knows of one request."""

    request: Request
    keys: Sequence[int]  # of its full blocks, less one if nothing would be left to compute
    cached: int = 0  # of its keys, as many from the first were findable when it was last looked at
    watched: int | None = None  # the key that it is looked at again for
    pending: bool = False  # it waits for that key, and is not a candidate


class CacheAwareQueue(WaitingQueue):
    """Candidates by cached prefix, those who were preempted before all others.

    Ageing: a request is a candidate only while it arrived at most `window_seconds` after the oldest that waits. So
    nobody is overtaken by one that came more than that after it, and everybody is the oldest at some time.
    """

    def __init__(
        self, cache: KVCache, window_seconds: float, *, min_shared_tokens: int = MIN_SHARED_TOKENS, looks: int = LOOKS
    ) -> None:
        super().__init__()
        self._cache = cache
        self._window = window_seconds
        self._min_shared = min_shared_tokens
        self._looks = looks
        self._later = RequestHeap()  # who arrived after the window, by arrival
        self._places: dict[str, Place] = {}  # of the candidates, and of those who wait for a prefix
        self._candidates = RequestHeap()
        self._watchers: dict[int, dict[str, Place]] = {}  # by key, then by request
        self._woken: dict[str, Place] = {}  # to be looked at again
        self._filling: dict[str, Place] = {}  # running requests
        self._fillers: dict[int, Place] = {}  # by key: the running request that will publish it
        self._num_pending = 0

    @property
    def num_pending(self) -> int:
        """See WaitingQueue."""
        return self._num_pending

    # -- who comes and goes --------------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """See WaitingQueue."""
        super().add(request)
        if request.num_preemptions:
            self._candidates.push((0, 0, request.rank[1]), request)
        else:
            self._later.push((request.arrival, request.rank[1]), request)

    def remove(self, request: Request) -> None:
        """See WaitingQueue."""
        super().remove(request)
        self._candidates.discard(request)
        self._later.discard(request)
        if (place := self._places.pop(request.id, None)) is not None:
            self._unwatch(place)
            self._woken.pop(request.id, None)

    def started(self, request: Request) -> None:
        """It will publish the keys that are not findable yet."""
        known = self._places.get(request.id)
        super().started(request)
        keys = self._cache.keys(request) if known is None else known.keys
        place = Place(request, keys, cached=request.num_computed // self._cache.block_size)
        self._filling[request.id] = place
        for key in keys[place.cached :]:
            self._fillers.setdefault(key, place)

    def published(self, keys: Sequence[int]) -> None:
        """See WaitingQueue."""
        for key in keys:
            self._fillers.pop(key, None)
            self._wake(key)

    def stopped(self, request: Request) -> None:
        """Nobody waits any longer for what it would have published."""
        place = self._filling.pop(request.id)
        for key in place.keys[place.cached :]:
            if self._fillers.get(key) is place:
                del self._fillers[key]
                self._wake(key)

    # -- who is next ---------------------------------------------------------------------------------------------------

    def head(self, now: float) -> Request | None:
        """The candidate with the longest cached prefix; of several, the one that came first."""
        self._look_again(now)
        self._open_window()
        # Where nobody runs, nobody is kept waiting by a long look, and somebody has to be found.
        for _ in range(self._looks if self._filling else sys.maxsize):
            request = self._candidates.first()
            if request is None or (place := self._places.get(request.id)) is None:
                return request  # preempted requests have no place: they resume before all others
            if self._cache.count(place.keys) != place.cached:
                self._watch(place)
            elif (filler := self._filler_of(place)) is not None:
                self._pend(place, filler, now)
            else:
                return request
        return None

    def _open_window(self) -> None:
        """Make candidates of those who arrived soon enough after the oldest."""
        for _ in range(self._looks):
            oldest, request = self.oldest, self._later.first()
            if request is None or oldest is None or request.arrival > oldest.arrival + self._window:
                return
            self._later.discard(request)
            self._places[request.id] = place = Place(request, self._cache.keys(request))
            self._watch(place)

    def _watch(self, place: Place) -> None:
        """Note how much of it is cached now, and to look again when that is one block more."""
        self._unwatch(place)
        place.cached = self._cache.count(place.keys)
        if place.cached < len(place.keys):
            self._watch_for(place, place.keys[place.cached])
        self._candidates.push((1, -place.cached, place.request.rank[1]), place.request)

    def _look_again(self, now: float) -> None:
        for _ in range(min(self._looks, len(self._woken))):
            place = self._woken.pop(next(iter(self._woken)))
            if place.pending:
                place.pending = False
                self._num_pending -= 1
                place.request.note(now, EventKind.WAITING)
            self._watch(place)

    # -- prefixes that are being computed ------------------------------------------------------------------------------

    def _filler_of(self, place: Place) -> Place | None:
        """The running request that computes so much of the missing prefix that waiting for it is worth a step."""
        filler = self._fillers.get(place.watched) if place.watched is not None else None
        if filler is None:
            return None
        block_size = self._cache.block_size
        saved = (_num_shared(place.keys, filler.keys) - place.cached) * block_size
        missing = place.request.num_tokens - place.cached * block_size
        return filler if saved >= self._min_shared and 2 * saved >= missing else None

    def _pend(self, place: Place, filler: Place, now: float) -> None:
        """Let it wait until the last block that it shares with `filler` is findable, or `filler` is gone."""
        self._candidates.discard(place.request)
        self._unwatch(place)
        self._watch_for(place, place.keys[_num_shared(place.keys, filler.keys) - 1])
        place.pending = True
        self._num_pending += 1
        place.request.note(now, EventKind.WAITING, WaitReason.PREFIX_PENDING, by=filler.request.id)

    def _watch_for(self, place: Place, key: int) -> None:
        place.watched = key
        self._watchers.setdefault(key, {})[place.request.id] = place

    def _unwatch(self, place: Place) -> None:
        if place.pending:
            place.pending = False
            self._num_pending -= 1
        if place.watched is not None and (watchers := self._watchers.get(place.watched)) is not None:
            watchers.pop(place.request.id, None)
            if not watchers:
                del self._watchers[place.watched]
        place.watched = None

    def _wake(self, key: int) -> None:
        if (watchers := self._watchers.pop(key, None)) is not None:
            self._woken.update(watchers)


def _num_shared(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """How many keys two requests share. A key stands for all blocks up to its own, so equal ones come first."""
    return bisect_left(range(min(len(ours), len(theirs))), True, key=lambda index: ours[index] != theirs[index])
