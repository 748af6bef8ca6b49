"""The requests that have ended lately, and how those that live have fared: what timelines are told from.

A `Recorder` of the engine. Of a live request nothing is kept here: its own lines are read when somebody asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from octavo_engine.batch import Batch, SchedulerStats, Slice
from octavo_engine.history.queue_log import QueueLog, settled, wait_lines
from octavo_engine.history.timeline import Timeline, timeline
from octavo_engine.request import EventKind, Request

ENDED_KEPT = 1024
REFUSED_KEPT = 256  # apart, so that a flood of refusals does not wash away the answers


class History:
    """The step thread calls `step` and `finished`, the server `refused`; anyone may look.

    What ended is kept as a Timeline, which holds no tokens: a few kilobytes a request at most.
    """

    def __init__(self, ended: int = ENDED_KEPT, refused: int = REFUSED_KEPT) -> None:
        self.queue = QueueLog()
        self._ended: deque[Timeline] = deque(maxlen=ended)
        self._refused: deque[Timeline] = deque(maxlen=refused)

    # -- recording -----------------------------------------------------------------------------------------------------

    def step(self, batch: Batch, seconds: float) -> None:
        """A batch was computed in `seconds`."""
        self.queue.note(batch.at, batch.blocked)
        for request in batch.admitted:
            if not request.num_preemptions:
                request.events[:] = settled(request.events, self.queue)
        for piece in batch.slices[batch.num_continuing :] + _begun_by_one(batch):
            piece.request.note_computed(batch.at, batch.at + seconds, piece.known)

    def token(self, request: Request, at: float) -> None:
        """Nothing: a request counts its own."""

    def finished(self, request: Request, at: float) -> None:
        """A request ended, in whatever way."""
        request.events[:] = settled(request.events, self.queue)
        self._ended.append(timeline(request, request.events, at))

    def refused(self, requests: Iterable[Request]) -> None:
        """Requests were refused at the door, which their last lines say."""
        self._refused.extend(timeline(request, request.events, request.events[-1].at) for request in requests)

    # -- looking -------------------------------------------------------------------------------------------------------

    def ended(self) -> list[Timeline]:
        """Those that have ended, the latest first; refused ones after the others."""
        return [*reversed(self._ended.copy()), *reversed(self._refused.copy())]

    def queue_at(self, stats: SchedulerStats) -> QueueLog:
        """What the queue waits for, the step that is being computed included, which is only recorded at its end."""
        log = self.queue.copy()
        if stats.decided > (log.since or 0.0):
            log.note(stats.decided, stats.blocked)
        return log

    def live(self, requests: Iterable[Request], stats: SchedulerStats, now: float) -> list[Timeline]:
        """The timelines of live requests up to `now`, in seconds on the engine's clock."""
        log = self.queue_at(stats)
        return [self._so_far(request, log, now) for request in requests]

    def find(self, name: str, live: Iterable[Request], stats: SchedulerStats, now: float) -> list[Timeline]:
        """The choices of the answer called `name`, the first one first.

        A client may give several requests the same `x-request-id`: then the latest come first.
        """
        found = {item.id: item for item in self.ended() if is_called(name, item)}
        wanted = [request for request in live if is_called(name, request) and request.id not in found]
        return sorted([*found.values(), *self.live(wanted, stats, now)], key=_place)

    def _so_far(self, request: Request, log: QueueLog, now: float) -> Timeline:
        events = request.events.copy()  # the step thread may add to it
        if events[-1].what is EventKind.ADMITTED:  # its step is being computed
            events = settled(events, log)
        return timeline(request, [*events, *wait_lines(events, log, now)], now)


class Named(Protocol):
    """What can be asked for by name."""

    @property
    def id(self) -> str:
        """The answer's id and the number of the choice: `chatcmpl-...-0`."""

    @property
    def x_request_id(self) -> str:
        """Of the HTTP request that it came with."""


def is_called(name: str, item: Named) -> bool:
    """Whether `name` is its own id, its answer's, or that of its HTTP request."""
    return name in (item.id, item.id.rpartition("-")[0], item.x_request_id)


def _place(item: Timeline) -> tuple[float, int]:
    number = item.id.rpartition("-")[2]
    return -item.arrival, int(number) if number.isdecimal() else 0


def _begun_by_one(batch: Batch) -> tuple[Slice, ...]:
    """Of the slices of one known token those that begin a request; nearly all others are decodes."""
    if not batch.admitted:
        return ()
    admitted = set(batch.admitted)
    return tuple(piece for piece in batch.slices[: batch.num_continuing] if piece.request in admitted)
