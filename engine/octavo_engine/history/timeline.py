"""A request's life as stretches of time, each with its state and its reason: from lines to what a person asks.

Pure. Seconds are counted from the receipt of the HTTP request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from octavo_engine.request import Event, EventKind, Request, WaitReason


class State(StrEnum):
    """What a stretch of time was spent on."""

    RECEIVING = "receiving"  # its body is read and checked, its prompt tokenized
    WAITING = "waiting"  # for a WaitReason, before it was ever admitted
    PREFILL = "prefill"  # its prompt is computed
    DECODE = "decode"  # its answer is generated
    PREEMPTED = "preempted"  # it lost its blocks, and waits to get them again
    RECOMPUTE = "recompute"  # what it had lost is computed again
    FINISHED = "finished"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Span:
    """`began` to `ended` in one state, for one reason."""

    state: State
    why: str
    began: float
    ended: float
    by: str = ""  # the request that its blocks were taken for, or that it waits for
    tokens: int = 0  # computed; what is cached, recomputed or generated beside them is told by the counts
    steps: int = 0

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.ended - self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A request in numbers. Tokens unless said."""

    prompt: int = 0
    cached: int = 0  # prompt tokens found in the prefix cache at the first admission
    read: int = 0  # of the prompt's, those of which log-probabilities or hidden states were wanted
    output: int = 0
    drafted: int = 0  # that were guessed, and computed
    accepted: int = 0  # of these, those that came true and gave one more
    preemptions: int = 0  # times
    longest_gap: float = 0.0  # seconds between two of its tokens
    longest_gap_at: float = 0.0  # seconds since it arrived, the gap's end
    longest_gap_prompt: int = 0  # prompt tokens, its own and others', that the step at the gap's end computed

    @classmethod
    def of(cls, request: Request) -> Counts:
        """As they are now."""
        return cls(
            prompt=request.num_prompt,
            cached=request.num_cached,
            read=len(request.to_read),
            output=request.num_output,
            drafted=request.num_drafted,
            accepted=request.num_accepted,
            preemptions=request.num_preemptions,
            longest_gap=request.longest_gap,
            longest_gap_at=max(0.0, request.longest_gap_at - request.arrival),
            longest_gap_prompt=request.longest_gap_prompt,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All that is known of one request. What can be derived from the lines is, when somebody asks."""

    id: str
    x_request_id: str  # of its HTTP request
    arrival: float  # seconds, the engine's monotonic clock
    until: float  # its end, or the moment for which it is told; the same clock
    counts: Counts
    events: tuple[Event, ...]
    left_out: int = 0  # lines that were too many

    @property
    def seconds(self) -> float:
        """From its receipt to its end, or to now."""
        return self.until - self.arrival

    @property
    def ended(self) -> bool:
        """False while it lives."""
        return self.events[-1].what in (EventKind.FINISHED, EventKind.REJECTED)

    @property
    def state(self) -> State:
        """What it is at, or how it ended."""
        match self.events[-1].what:
            case EventKind.FINISHED:
                return State.FINISHED
            case EventKind.REJECTED:
                return State.REJECTED
        return self.spans()[-1].state

    @property
    def why(self) -> str:
        """The reason of its state."""
        return self.events[-1].why if self.ended else self.spans()[-1].why

    @property
    def first_token(self) -> float | None:
        """Seconds from its receipt to the first token."""
        times = (event.at - self.arrival for event in self.events if event.what is EventKind.FIRST_TOKEN)
        return next(times, None)

    def spans(self) -> tuple[Span, ...]:
        """Its stretches in order. Those of no length are left out, but for a live one's present stretch."""
        return tuple(_spans(self.events, self.until, self.arrival, ended=self.ended))

    def shares(self) -> list[tuple[State, str, float]]:
        """Seconds by state and reason, the longest first."""
        totals: dict[tuple[State, str], float] = {}
        for span in self.spans():
            totals[span.state, span.why] = totals.get((span.state, span.why), 0.0) + span.seconds
        ordered = sorted(totals.items(), key=lambda item: -item[1])
        return [(state, why, seconds) for (state, why), seconds in ordered]


def timeline(request: Request, events: Sequence[Event], now: float) -> Timeline:
    """The timeline of `request` at `now` from `events`, its own with the present wait, if any, spelled out."""
    last = events[-1]
    ended = last.what in (EventKind.FINISHED, EventKind.REJECTED)
    return Timeline(
        id=request.id,
        x_request_id=request.x_request_id,
        arrival=request.arrival,
        until=last.at if ended else max(now, last.at, last.until),
        counts=Counts.of(request),
        events=tuple(events),
        left_out=request.events_left_out,
    )


def _spans(events: Sequence[Event], until: float, arrival: float, *, ended: bool) -> Iterator[Span]:
    """Stretches between lines, in seconds since `arrival`; a live request's last one ends at `until`."""
    last, ends = events[-1], [*(event.at for event in events[1:]), *(() if ended else (until,))]
    spoken, lost = False, None
    for line, end in zip(events, ends, strict=not ended):
        spoken |= line.what is EventKind.FIRST_TOKEN
        lost = line if line.what is EventKind.PREEMPTED else lost if line.what is EventKind.WAITING else None
        for state, why, began, stop in _stretch(line, end, spoken, lost):
            if stop > began or (line is last and stop == end):
                computes = state in (State.PREFILL, State.RECOMPUTE)
                counted = (line.tokens, line.steps) if computes and line.steps else (0, 0)
                yield Span(state, why, began - arrival, stop - arrival, (lost or line).by, *counted)


def _stretch(line: Event, end: float, spoken: bool, lost: Event | None) -> Iterator[tuple[State, str, float, float]]:
    """State, reason and bounds of what is between a line and the next: one, or recomputation and then generation."""
    match line.what:
        case EventKind.ARRIVED:
            yield State.RECEIVING, "", line.at, end
        case EventKind.SUBMITTED | EventKind.QUEUED:
            yield State.WAITING, WaitReason.NEW, line.at, end
        case EventKind.WAITING | EventKind.PREEMPTED:
            yield (State.PREEMPTED, lost.why, line.at, end) if lost else (State.WAITING, line.why, line.at, end)
        case EventKind.COMPUTED if spoken:
            yield State.RECOMPUTE, "", line.at, min(line.until, end)
            yield State.DECODE, "", min(line.until, end), end
        case EventKind.ADMITTED | EventKind.COMPUTED:
            yield State.RECOMPUTE if spoken else State.PREFILL, "", line.at, end
        case EventKind.FIRST_TOKEN:
            yield State.DECODE, "", line.at, end
