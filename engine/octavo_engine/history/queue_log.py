"""What the waiting queue waited for, and since when.

What holds the head of the queue holds everyone behind it, so a change of the reason is written once, not once for each
request: a step costs the same with ten thousand waiting. A request's own share is cut out when its wait ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from octavo_engine.request import Event, EventKind, WaitReason

CHANGES_KEPT = 4096
MAX_WAIT_LINES = 12  # of one wait in a timeline; what changes to and fro more often has one line for each reason


class Change(NamedTuple):
    """From when on something is waited for, and what."""

    at: float  # seconds, the engine's clock
    reason: WaitReason
    by: str = ""  # the request that is waited for


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
                found.append(Change(max(at, begin), reason or WaitReason.NEW))
            if at <= begin:
                return found[::-1]
        return [Change(begin, WaitReason.NEW), *found[::-1]]


def wait_lines(events: Sequence[Event], log: QueueLog, end: float) -> list[Event]:
    """The lines of the wait that `events` end with, which lasts until `end`: each with its reason and since when.

    None when they end otherwise, nor for the time in which it is new, which is said already. What the scheduler noted
    for this request alone comes before what the queue waited for. After a preemption the reason of that is what
    matters, and nothing is added to it.
    """
    own = _own_lines(events)
    changes: list[Change] = []
    for line, until in zip(own, [*(line.at for line in own[1:]), end], strict=False):
        if line.why:
            changes.append(Change(line.at, WaitReason(line.why), line.by))
        else:
            changes += log.between(line.at, until)
    lines = [Event(at, EventKind.WAITING, reason, by) for at, reason, by in _shortened(_joined(changes), end)]
    return lines[1:] if lines and lines[0].why == WaitReason.NEW else lines


def settled(events: Sequence[Event], log: QueueLog) -> list[Event]:
    """`events` with the wait that the last of them has just ended spelled out: they then need the log no more."""
    *before, last = events
    lines = wait_lines(before, log, last.at)
    kept = [event for event in before if event.what is not EventKind.WAITING] if lines else before
    return [*kept, *lines, last]


def _own_lines(events: Sequence[Event]) -> list[Event]:
    """The beginning of the last wait and what was noted in it; without a reason, the queue's holds from there on."""
    own: list[Event] = []
    for event in reversed(events):
        own.append(event)
        if event.what is EventKind.QUEUED:
            return own[::-1]
        if event.what is not EventKind.WAITING:
            break
    return []


def _joined(changes: Iterable[Change]) -> list[Change]:
    """Without changes from a reason to itself."""
    joined: list[Change] = []
    for change in changes:
        if not joined or joined[-1][1:] != change[1:]:
            joined.append(change)
    return joined


def _shortened(changes: list[Change], end: float) -> list[Change]:
    """At most a dozen: of more, each reason has one, as long as all its times together."""
    if len(changes) <= MAX_WAIT_LINES:
        return changes
    seconds: dict[WaitReason, float] = {}
    for change, until in zip(changes, [*(change.at for change in changes[1:]), end], strict=True):
        seconds[change.reason] = seconds.get(change.reason, 0.0) + until - change.at
    at, lines = changes[0].at, []
    for reason, length in seconds.items():
        lines.append(Change(at, reason))
        at += length
    return lines
