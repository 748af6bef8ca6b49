"""What is remembered between decisions, and how samples become figures: sums, rates, and what a replica can do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from octavo_operator.autoscaling.values import DEFAULT_CAPACITY, STEP_SECONDS, Decision, Fleet, Inputs, Limits, Load

BACKLOG_SECONDS = 30.0  # throughput is believed after a backlog this long
BELIEVED_SECONDS = 1800.0  # and for this long after the last one: by then other requests may come
ARRIVALS_SECONDS = 10.0  # time constants of what is smoothed
RUNNING_SECONDS = 60.0
SETTLED_SECONDS = 15.0  # a replica this old no longer brings a wave of requests that were refused elsewhere
DRAINED = 0.9  # of the longest queue: below it the queue is draining
GAP_SECONDS = 60.0  # after a longer silence nothing is known of the time between


@dataclass(frozen=True)
class Track:
    """What is remembered of one replica: since when it is known, its counters, since when it has had a backlog, and its
    completions then."""

    since: float
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
    overloaded_samples: int = 0
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


def measured(state: State, fleet: Fleet, limits: Limits, now: float) -> tuple[Inputs, State]:
    """The sample as sums and rates, and the state that has learned from it."""
    loads = fleet.loads
    state = _learn(state, loads)
    waiting = sum(load.waiting for load in loads.values())
    running = sum(load.running for load in loads.values())
    tracks = {name: _track(state.tracks.get(name), load, now) for name, load in loads.items()}
    starting = sum(not replica.ready for replica in fleet.replicas)
    state = _smoothed(state, loads, now) if loads else state
    speeds = [speed for name, load in loads.items() if (speed := _throughput(tracks[name], load, now)) is not None]
    if speeds:
        state = replace(state, throughput=sum(speeds) / len(speeds), throughput_at=now)
    ready = sum(replica.ready for replica in fleet.replicas)
    ceiling = max((load.max_num_seqs for load in loads.values()), default=DEFAULT_CAPACITY)
    overloaded = waiting > (len(loads) + starting) * limits.queue_depth
    state = replace(
        state,
        seen=now,
        tracks=tracks,
        overloaded_samples=state.overloaded_samples + 1 if overloaded else 0,
    )
    inputs = Inputs(
        waiting=waiting,
        running=running,
        ready=ready,
        starting=starting,
        without_data=ready - len(loads),
        capacity=state.capacity or float(ceiling),
        throughput=_believed(state, state.capacity or float(ceiling), running, now),
        arrivals_per_second=state.peak_arrivals,
        completions_per_second=state.completions,
        mean_running=state.running,
        load_seconds=state.load_seconds,
        oldest_wait_seconds=max((load.oldest_wait_seconds for load in loads.values()), default=0.0),
    )
    return inputs, state


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
        overloaded_samples=0 if changed > 0 else state.overloaded_samples,
        last_increase=now if changed > 0 else state.last_increase,
        last_decrease=now if changed < 0 else state.last_decrease,
    )


def _learn(state: State, loads: dict[str, Load]) -> State:
    """Capacity and start times from this sample."""
    if not loads:
        return state
    ceiling = float(max(load.max_num_seqs for load in loads.values()))
    full = [load.running for load in loads.values() if load.waiting_full and load.running]
    capacity = state.capacity
    if full:
        seen = sum(full) / len(full)
        capacity = seen if capacity is None else capacity + 0.3 * (seen - capacity)
    elif capacity is not None and max(load.kv_usage for load in loads.values()) < 0.5:
        capacity += 0.02 * (ceiling - capacity)  # it was learned with longer requests than come now
    if capacity is not None:
        capacity = min(max(capacity, 1.0, *(float(load.running) for load in loads.values())), ceiling)
    starts = [load.startup_seconds for load in loads.values() if load.startup_seconds is not None]
    return replace(state, capacity=capacity, load_seconds=max(starts, default=state.load_seconds))


def _smoothed(state: State, loads: dict[str, Load], now: float) -> State:
    """Rates and running requests with this sample in them.

    A queue that is full admits as many as are completed, and clients that wait send nothing: while it does not drain,
    arrivals are at least what they were before.
    """
    running = float(sum(load.running for load in loads.values()))
    waiting = sum(load.waiting for load in loads.values())
    if state.seen is None:
        return replace(state, running=running)
    known = [(state.tracks[name], load) for name, load in loads.items() if name in state.tracks]
    known = [(before, load) for before, load in known if not _restarted(before, load)]
    came = sum(load.arrivals_total - before.arrivals for before, load in known)
    ended = sum(load.completions_total - before.completions for before, load in known)
    passed = max(now - state.seen, 1.0)  # samples that follow each other at once say nothing about rates
    # What Poisson arrivals exceed by chance is taken off; what remains is there now, and is not smoothed away. A wave
    # that comes with a new replica is different: those that were refused before try again.
    settled = len(known) == len(loads) and all(now - before.since >= SETTLED_SECONDS for before, _ in known)
    certain = (came - math.sqrt(came)) / passed if settled else 0.0
    draining = waiting < DRAINED * state.peak_waiting or (ended and not came)
    fast, slow = (1 - math.exp(-passed / constant) for constant in (ARRIVALS_SECONDS, RUNNING_SECONDS))
    arrivals = state.arrivals + fast * (came / passed - state.arrivals)
    return replace(
        state,
        arrivals=arrivals,
        peak_arrivals=max(arrivals, certain, state.peak_arrivals if state.peak_waiting and not draining else 0.0),
        peak_waiting=max(waiting, state.peak_waiting) if waiting else 0,
        completions=state.completions + slow * (ended / passed - state.completions),
        running=state.running + slow * (running - state.running),
    )


def _believed(state: State, capacity: float, running: int, now: float) -> float | None:
    """Completions per second of a full replica: as measured, or by Little's law from how long requests run."""
    if state.throughput is not None and now - state.throughput_at <= BELIEVED_SECONDS:
        return state.throughput or None
    # Completions lag behind a load that has just begun: they tell once those that run have been exchanged twice.
    if state.running <= 0 or state.completions * RUNNING_SECONDS <= 2 * max(state.running, running):
        return None
    return capacity * state.completions / state.running


def _restarted(before: Track, load: Load) -> bool:
    """A counter that shrank means a new process in the container."""
    return load.completions_total < before.completions or load.arrivals_total < before.arrivals


def _track(before: Track | None, load: Load, now: float) -> Track:
    """The replica's memory after this sample."""
    if before is None or _restarted(before, load):
        before = Track(now, load.arrivals_total, load.completions_total)
    since, completions = before.backlog_since, before.backlog_completions
    if load.waiting == 0:
        since, completions = None, 0
    elif since is None:
        since, completions = now, load.completions_total
    return Track(before.since, load.arrivals_total, load.completions_total, since, completions)


def _throughput(track: Track, load: Load, now: float) -> float | None:
    """Completions per second over a backlog of at least `BACKLOG_SECONDS`."""
    if track.backlog_since is None or now - track.backlog_since < BACKLOG_SECONDS:
        return None
    return (load.completions_total - track.backlog_completions) / (now - track.backlog_since)
