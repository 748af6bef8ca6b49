"""What is remembered between decisions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from octavo_operator.autoscaling.values import STEP_SECONDS, Decision, Limits

GAP_SECONDS = 60.0  # after a longer silence nothing is known of the time between


@dataclass(frozen=True)
class Track:
    """What is remembered of one replica: since when it is known, its counters when it was last seen, since when it has
    had a backlog, and its completions then."""

    since: float
    seen: float
    arrivals: int
    completions: int
    backlog_since: float | None = None
    backlog_completions: int = 0


@dataclass(frozen=True)
class State:
    """Memory between decisions. A fresh one, after an operator restart, waits a whole window before any decrease."""

    target: int
    capacity: float | None = None  # requests a full replica runs
    throughput: float | None = None  # completions per second of a backlogged replica
    throughput_at: float = 0.0  # when that was last measured
    load_seconds: float = 60.0  # longest start seen
    seen: float | None = None
    tracks: dict[str, Track] = field(default_factory=dict)
    arrivals: float = 0.0  # per second, smoothed
    completions: float = 0.0  # per second, smoothed
    running: float = 0.0  # smoothed
    peak_waiting: int = 0  # most waiting since some wait
    peak_arrivals: float = 0.0  # highest rate until the queue began to drain
    overload: int = 0  # samples in which the queue was over the target; one over twice the target counts double
    wanted: tuple[tuple[float, int], ...] = ()  # (time, count wanted), over the window
    before: tuple[tuple[float, int], ...] = ()  # (time, target before that sample), over the step period
    last_increase: float | None = None
    last_decrease: float | None = None


def window_of(state: State, limits: Limits) -> float:
    """Seconds a decrease waits; a model that loads slowly is not let go lightly."""
    return max(limits.window_seconds, 2 * state.load_seconds)


def resumed(state: State, now: float) -> State:
    """Forgets what rests on an unbroken series of samples, if the series is broken: by a pause, or by the clock."""
    if state.seen is None or 0 <= now - state.seen <= GAP_SECONDS:
        return state
    fresh = State(target=state.target, capacity=state.capacity, load_seconds=state.load_seconds)
    return replace(fresh, throughput=state.throughput, throughput_at=now)


def remembered(state: State, decision: Decision, limits: Limits, now: float) -> State:
    """The state after a decision."""
    window = window_of(state, limits)
    changed = decision.replicas - decision.previous
    wanted = (*state.wanted, (now, decision.wanted))
    # The newest entry older than the window stays: it shows that the whole window was watched.
    older = [entry for entry in wanted if now - entry[0] > window]
    return replace(
        state,
        target=decision.replicas,
        wanted=(*older[-1:], *(entry for entry in wanted if now - entry[0] <= window)),
        before=(*((t, n) for t, n in state.before if now - t < STEP_SECONDS), (now, decision.previous)),
        overload=0 if changed > 0 else state.overload,
        last_increase=now if changed > 0 else state.last_increase,
        last_decrease=now if changed < 0 else state.last_decrease,
    )
