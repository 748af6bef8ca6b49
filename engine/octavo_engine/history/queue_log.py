"""What the waiting queue waited for, and since when.

What holds the head of the queue holds everyone behind it, so a change of the reason is written once, not once for each
request: a step costs the same with ten thousand waiting. A request's own share is cut out when its wait ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Self

from octavo_engine.request import Event, EventKind, Request, WaitReason

CHANGES_KEPT = 4096
MAX_WAIT_LINES = 12  # of one wait in a timeline; what changes to and fro more often has one line for each reason

Change = tuple[float, WaitReason]
"""From when on something is waited for, and what."""


class QueueLog:
    """Changes of what the queue waits for, the latest `CHANGES_KEPT`. One thread writes; others read a `copy`."""

    def __init__(self, changes: Iterable[tuple[float, WaitReason | None]] = ()) -> None:
        self._changes = deque(changes, CHANGES_KEPT)
        self.present: WaitReason | None = self._changes[-1][1] if self._changes else None

    def copy(self) -> Self:
        """The log as it is now."""
        return type(self)(self._changes.copy())

    @property
    def since(self) -> float | None:
        """When the present reason began; None before any."""
        return self._changes[-1][0] if self._changes else None

    def note(self, at: float, reason: WaitReason | None) -> None:
        """From the decision made at `at` on, those that wait do so for `reason`; None: nobody waits."""
        if reason is not self.present:
            self.present = reason
            self._changes.append((at, reason))

    def between(self, begin: float, end: float) -> list[Change]:
        """What was waited for from `begin` to `end`: the first change is at `begin`, the others follow it.

        Who comes when nobody waits, or before what this log remembers, is NEW until a step has looked at the queue.
        """
        found: list[Change] = []
        for at, reason in reversed(self._changes):
            if at < end:
                found.append((max(at, begin), reason or WaitReason.NEW))
            if at <= begin:
                return found[::-1]
        return [(begin, WaitReason.NEW), *found[::-1]]


def wait_lines(events: Sequence[Event], log: QueueLog, end: float) -> list[Event]:
    """The lines of the wait that `events` end with, which lasts until `end`: each with its reason and since when.

    None when they end otherwise, nor for the time in which it is new, which is said already. What the scheduler noted
    for this request alone comes before what the queue waited for. After a preemption the reason of that is what
    matters, and nothing is added to it.
    """
    own = _own_reasons(events)
    changes: list[Change] = []
    for (at, reason), until in zip(own, [*(at for at, _ in own[1:]), end], strict=False):
        changes += log.between(at, until) if reason is None else [(at, reason)]
    lines = [Event(at, EventKind.WAITING, reason) for at, reason in _shortened(_joined(changes), end)]
    return lines[1:] if lines and lines[0].why == WaitReason.NEW else lines


def settle(request: Request, log: QueueLog) -> None:
    """Write the wait that has just ended into the timeline, which then needs the log no more.

    The last line is what ended it: an admission, or the end of the request.
    """
    last = request.events[-1]
    lines = wait_lines(request.events[:-1], log, last.at)
    if lines:
        kept = [event for event in request.events[:-1] if event.what is not EventKind.WAITING]
        request.events[:] = [*kept, *lines, last]


def _own_reasons(events: Sequence[Event]) -> list[tuple[float, WaitReason | None]]:
    """From when on the last wait was for what reason of this request alone; None: for what the queue waits for."""
    own: list[tuple[float, WaitReason | None]] = []
    for event in reversed(events):
        if event.what is EventKind.WAITING:
            own.append((event.at, WaitReason(event.why) if event.why else None))
        elif event.what is EventKind.QUEUED:
            return [(event.at, None), *own[::-1]]
        else:
            break
    return []


def _joined(changes: Iterable[Change]) -> list[Change]:
    """Without changes from a reason to itself."""
    joined: list[Change] = []
    for change in changes:
        if not joined or joined[-1][1] is not change[1]:
            joined.append(change)
    return joined


def _shortened(changes: list[Change], end: float) -> list[Change]:
    """At most a dozen: of more, each reason has one, as long as all its times together."""
    if len(changes) <= MAX_WAIT_LINES:
        return changes
    seconds: dict[WaitReason, float] = {}
    for (at, reason), until in zip(changes, [*(at for at, _ in changes[1:]), end], strict=True):
        seconds[reason] = seconds.get(reason, 0.0) + until - at
    at, lines = changes[0][0], []
    for reason, length in seconds.items():
        lines.append((at, reason))
        at += length
    return lines
