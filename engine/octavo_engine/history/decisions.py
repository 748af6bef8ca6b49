"""Decisions as lines of JSON: who is admitted, preempted, evicted, refused, and what the queue waits for.

Off, it does not exist; on, a line costs the step thread a tuple in a bounded queue, and a thread of its own writes it.
When that cannot keep up, lines are left out and counted, and no step waits. Ids, numbers and reasons only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from octavo_engine.batch import Batch
from octavo_engine.history.lines import LINES_WAITING, Lines
from octavo_engine.request import EventKind, Request, WaitReason

Decision = dict[str, Any]
Stamped = tuple[float, int, Decision]
"""When it was made, in Unix seconds, in which step, and what it was."""


def decisions_of(batch: Batch, before: WaitReason | None) -> Iterator[Decision]:
    """What was decided in a batch, in the order of the decisions; `before`: what the queue waited for until then."""
    for request, reason in batch.preempted:
        lines = (event for event in reversed(request.events) if event.what is EventKind.PREEMPTED)
        by = next((event.by for event in lines), "")
        yield {"decision": "preempt", "request": request.id, "reason": reason.value, "by": by}
    if batch.evicted_blocks:
        yield {"decision": "evict", "blocks": batch.evicted_blocks}
    for request in batch.admitted:
        known, again = request.num_tokens, request.num_preemptions
        line = {"decision": "admit", "request": request.id, "tokens": known, "cached": _cached(request), "again": again}
        yield line | {"waited": _waited(request)}
    if batch.blocked is not before:
        yield {"decision": "wait", "reason": batch.blocked, "before": before}


def _waited(request: Request) -> dict[str, float]:
    """Seconds by reason from when it was first looked at, or was preempted, to its latest admission."""
    seconds: dict[str, float] = {}
    end = None
    for event in reversed(request.events):
        if end is not None:
            why = WaitReason.NEW if event.what is EventKind.QUEUED else event.why
            seconds[why] = round(seconds.get(why, 0.0) + end - event.at, 6)
            end = event.at
        if event.what in (EventKind.QUEUED, EventKind.PREEMPTED) and end is not None:
            break
        if event.what is EventKind.ADMITTED and end is None:
            end = event.at
    return {why: length for why, length in seconds.items() if length}


def _cached(request: Request) -> int:
    """Tokens found in the prefix cache at the latest admission."""
    lines = (event for event in reversed(request.events) if event.what is EventKind.ADMITTED)
    return next((event.tokens for event in lines), 0)


class DecisionLog:
    """A `Recorder` that writes to `out`. `write` is called with the lines of a moment at once, by a thread."""

    def __init__(self, out: TextIO, *, waiting: int = LINES_WAITING, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._before: WaitReason | None = None
        self._step = 0
        self._lines = Lines(out, _line, self._left_out, waiting=waiting)

    def step(self, batch: Batch, seconds: float) -> None:
        """A batch was computed in `seconds`: its decisions were made before."""
        self._step += 1
        for decision in decisions_of(batch, self._before):
            self._put(decision, ago=seconds)
        self._before = batch.blocked

    def token(self, request: Request, at: float) -> None:
        """A token is no decision."""

    def finished(self, request: Request, at: float) -> None:
        """A request ended."""
        reason, seconds = request.finish_reason, round(at - request.arrival, 6)
        line = {"decision": "finish", "request": request.id, "reason": reason, "output": request.num_output}
        self._put(line | {"preemptions": request.num_preemptions, "seconds": seconds})

    def refused(self, requests: Sequence[Request]) -> None:
        """Requests were refused at the door; called by the server's thread."""
        for request in requests:
            self._put({"decision": "reject", "request": request.id, "reason": request.events[-1].why})

    def close(self) -> None:
        """Write what waits to be written: nothing is decided any more."""
        self._lines.close()

    def _put(self, decision: Decision, ago: float = 0.0) -> None:
        self._lines.put(self._now(decision, ago))

    def _left_out(self, lines: int) -> Stamped:
        return self._now({"decision": "left_out", "lines": lines})

    def _now(self, decision: Decision, ago: float = 0.0) -> Stamped:
        return self._wall() - ago, self._step, decision


def _line(item: Stamped) -> str:
    at, step, decision = item
    return json.dumps({"at": round(at, 6), "step": step} | decision, separators=(",", ":")) + "\n"
