"""How samples become figures: sums, rates, and what a replica can do."""

from __future__ import annotations

import math
from dataclasses import replace

from octavo_operator.autoscaling.memory import State, Track
from octavo_operator.autoscaling.values import DEFAULT_CAPACITY, Fleet, Inputs, Limits, Load

BACKLOG_SECONDS = 30.0  # throughput is believed after a backlog this long
BELIEVED_SECONDS = 1800.0  # and for this long after the last one: by then other requests may come
ARRIVALS_SECONDS = 10.0  # time constants of what is smoothed
RUNNING_SECONDS = 60.0
SETTLED_SECONDS = 15.0  # a replica this old has taken its share, and no more comes that was refused elsewhere
DRAINED = 0.9  # of the longest queue: below it the queue is draining


def measured(state: State, fleet: Fleet, limits: Limits, now: float) -> tuple[Inputs, State]:
    """The sample as sums and rates, and the state that has learned from it."""
    loads = fleet.loads
    state = _learn(state, loads)
    waiting = sum(load.waiting for load in loads.values())
    running = sum(load.running for load in loads.values())
    tracks = _tracked(state, fleet, now)
    settled = all(now - tracks[name].since >= SETTLED_SECONDS for name in loads)
    state = _smoothed(state, loads, now, settled=settled) if loads else state
    speeds = [speed for name, load in loads.items() if (speed := _throughput(tracks[name], load, now)) is not None]
    if speeds:
        state = replace(state, throughput=sum(speeds) / len(speeds), throughput_at=now)
    ready = sum(replica.ready for replica in fleet.replicas)
    starting = len(fleet.replicas) - ready
    ceiling = max((load.max_num_seqs for load in loads.values()), default=DEFAULT_CAPACITY)
    allowed = (len(loads) + starting) * limits.queue_depth
    overload = state.overload + (2 if waiting > 2 * allowed else 1) if settled and waiting > allowed else 0
    state = replace(state, seen=now, tracks=tracks, overload=overload)
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


def _smoothed(state: State, loads: dict[str, Load], now: float, *, settled: bool) -> State:
    """Rates and running requests with this sample in them.

    A queue that is full admits as many as are completed, and clients that wait send nothing: while it does not drain,
    arrivals are at least what they were before.
    """
    running = float(sum(load.running for load in loads.values()))
    waiting = sum(load.waiting for load in loads.values())
    if state.seen is None:
        return replace(state, running=running)
    passed = max(now - state.seen, 1.0)  # samples that follow each other at once say nothing about rates
    came, ended = _rates(state.tracks, loads, now)
    # What Poisson arrivals exceed by chance is taken off; what remains is there now, and is not smoothed away. A wave
    # that comes with a new replica is different: those that were refused before try again.
    certain = came - math.sqrt(came / passed) if settled else 0.0
    draining = waiting < DRAINED * state.peak_waiting or (ended and not came)
    fast, slow = (1 - math.exp(-passed / constant) for constant in (ARRIVALS_SECONDS, RUNNING_SECONDS))
    arrivals = state.arrivals + fast * (came - state.arrivals)
    return replace(
        state,
        arrivals=arrivals,
        peak_arrivals=max(arrivals, certain, state.peak_arrivals if state.peak_waiting and not draining else 0.0),
        peak_waiting=max(waiting, state.peak_waiting) if waiting else 0,
        completions=state.completions + slow * (ended - state.completions),
        running=state.running + slow * (running - state.running),
    )


def _rates(tracks: dict[str, Track], loads: dict[str, Load], now: float) -> tuple[float, float]:
    """Arrivals and completions per second, each replica's over the time since it was last seen."""
    came = ended = 0.0
    for name, load in loads.items():
        before = tracks.get(name)
        if before is not None and before.seen < now and not _restarted(before, load):
            passed = max(now - before.seen, 1.0)
            came += (load.arrivals_total - before.arrivals) / passed
            ended += (load.completions_total - before.completions) / passed
    return came, ended


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


def _tracked(state: State, fleet: Fleet, now: float) -> dict[str, Track]:
    """The memory of all ready replicas after this sample; of a silent one, what was known before."""
    # The first replicas answer no queue elsewhere, and after a restart of the operator all have been there before.
    since = now if state.tracks else now - SETTLED_SECONDS
    present = {replica.name for replica in fleet.replicas if replica.ready}
    kept = {name: track for name, track in state.tracks.items() if name in present}
    return kept | {name: _track(kept.get(name), load, since, now) for name, load in fleet.loads.items()}


def _track(before: Track | None, load: Load, since: float, now: float) -> Track:
    if before is None or _restarted(before, load):
        before = Track(since, now, load.arrivals_total, load.completions_total)
    backlog, completions = before.backlog_since, before.backlog_completions
    if load.waiting == 0:
        backlog, completions = None, 0
    elif backlog is None:
        backlog, completions = now, load.completions_total
    return Track(before.since, now, load.arrivals_total, load.completions_total, backlog, completions)


def _throughput(track: Track, load: Load, now: float) -> float | None:
    """Completions per second over a backlog of at least `BACKLOG_SECONDS`."""
    if track.backlog_since is None or now - track.backlog_since < BACKLOG_SECONDS:
        return None
    return (load.completions_total - track.backlog_completions) / (now - track.backlog_since)
