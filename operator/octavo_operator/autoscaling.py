"""How many replicas a service should have: a pure function of samples, limits and time.

Feed `decide` one `Fleet` every few seconds with the state it returned before. Nothing here reads a clock or a
network; `now` is monotonic seconds. The idea in one line: concurrency (running, plus as much waiting as is allowed)
over what a replica can hold; measured throughput where a backlog has shown it; up at once, down with patience.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum


class Reason(Enum):
    """Why the count is what it is; label of metrics and word in status."""

    STEADY = "Steady"
    CONCURRENCY = "Concurrency"
    QUEUE_GROWTH = "QueueGrowth"
    THROUGHPUT = "Throughput"
    LOW_LOAD = "LowLoad"
    BELOW_MINIMUM = "BelowMinimum"
    ABOVE_MAXIMUM = "AboveMaximum"
    NO_DATA = "NoData"


class Limit(Enum):
    """What kept the count below what the load asks for; reason of the condition ScalingLimited."""

    MAX_REPLICAS = "MaxReplicas"
    UNSCHEDULABLE = "PodsUnschedulable"
    FAILING = "PodsFailing"
    STEP = "StepLimit"


@dataclass(frozen=True)
class Limits:
    """What the user asked for, and the operator's window.

    Attributes:
        queue_depth: waiting requests a replica may hold.
        objective_seconds: a waiting request should start within this.
        window_seconds: a decrease follows the highest count wanted in this time.
    """

    minimum: int
    maximum: int
    queue_depth: int = 4
    objective_seconds: float = 30.0
    window_seconds: float = 300.0


@dataclass(frozen=True)
class Load:
    """One replica's answer on `/load`."""

    waiting: int = 0
    waiting_full: int = 0  # of those, held back by a full batch or a full KV cache
    running: int = 0
    max_num_seqs: int = 1
    arrivals_total: int = 0
    completions_total: int = 0
    oldest_wait_seconds: float = 0.0
    kv_usage: float = 0.0
    startup_seconds: float | None = None


@dataclass(frozen=True)
class Replica:
    """One pod that is not terminating. `load` is None where there is no data.

    Attributes:
        stuck: why it will not be ready by waiting alone, if so.
    """

    name: str
    ready: bool
    stuck: Limit | None = None
    load: Load | None = None


@dataclass(frozen=True)
class Fleet:
    """All of a service's replicas at one moment; `rolling` while a new revision is rolled out."""

    replicas: tuple[Replica, ...]
    rolling: bool = False

    @property
    def stuck(self) -> Limit | None:
        """Why a replica does not start, if one does not: adding another would not help."""
        return next((replica.stuck for replica in self.replicas if replica.stuck), None)


@dataclass(frozen=True)
class Track:
    """What is remembered of one replica: since when it has had a backlog, and its counters then and last."""

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
    load_seconds: float = 60.0  # longest start seen
    tracks: dict[str, Track] = field(default_factory=dict)
    overloaded_samples: int = 0
    wanted: tuple[tuple[float, int], ...] = ()  # (time, count wanted), over the window
    before: tuple[tuple[float, int], ...] = ()  # (time, target before that sample), over the step period
    last_increase: float | None = None
    last_decrease: float | None = None


@dataclass(frozen=True)
class Inputs:
    """The figures a decision rests on, for status and metrics."""

    waiting: int = 0
    running: int = 0
    ready: int = 0
    starting: int = 0
    without_data: int = 0
    capacity: float = 0.0
    throughput: float | None = None
    arrivals_per_second: float = 0.0
    load_seconds: float = 60.0
    oldest_wait_seconds: float = 0.0

    @property
    def replicas(self) -> int:
        """Capacity that is there or on its way."""
        return self.ready + self.starting


@dataclass(frozen=True)
class Decision:
    """How many replicas from now on, why, and what held it back."""

    replicas: int
    previous: int
    reason: Reason
    message: str
    inputs: Inputs
    wanted: int
    limited: Limit | None = None
    victim: str | None = None

    @property
    def changed(self) -> bool:
        """Whether the count moves."""
        return self.replicas != self.previous


DEFAULT_CAPACITY = 256.0
STEP_SECONDS = 15.0  # at most a doubling, or two more, within this time
BACKLOG_SECONDS = 30.0  # throughput is believed after a backlog this long
DECREASE_SECONDS = 60.0  # at most one replica less within this time
UTILISATION = 0.9  # of measured throughput; the rest is headroom for bursts
SHRINK_LOAD = 0.8  # the remaining replicas must be left below this share; inside the 10 % tolerance on decreases


def decide(state: State, fleet: Fleet, limits: Limits, now: float) -> tuple[Decision, State]:
    """One step. Returns what to do and the state for the next call."""
    state = _learn(state, fleet)
    inputs, state = _measure(state, fleet, now)
    clamped = min(max(state.target, limits.minimum), limits.maximum)
    if clamped != state.target:
        reason = Reason.BELOW_MINIMUM if clamped > state.target else Reason.ABOVE_MAXIMUM
        message = f"the bounds are {limits.minimum} to {limits.maximum}"
        victim = _least_busy(fleet) if clamped < state.target else None
        decision = Decision(clamped, state.target, reason, message, inputs, wanted=clamped, victim=victim)
    elif inputs.ready and inputs.without_data == inputs.ready:
        message = "no ready replica reports its load: the count is held"
        decision = Decision(state.target, state.target, Reason.NO_DATA, message, inputs, wanted=state.target)
    else:
        decision, state = _follow_load(state, fleet, inputs, limits, now)
    return decision, _remember(state, decision, limits, now)


def _follow_load(state: State, fleet: Fleet, inputs: Inputs, limits: Limits, now: float) -> tuple[Decision, State]:
    overloaded = inputs.waiting > inputs.replicas * limits.queue_depth
    state = replace(state, overloaded_samples=state.overloaded_samples + 1 if overloaded else 0)
    wanted, reason = _wanted(state, inputs, limits, overloaded)
    if wanted > state.target:
        return _increase(state, fleet, inputs, wanted=wanted, reason=reason, now=now), state
    if wanted < state.target and _may_decrease(state, fleet, inputs, limits, wanted=wanted, now=now):
        words = f"{inputs.running} running of {inputs.capacity:.0f} a replica can run, none waiting: one replica less"
        target = state.target - 1
        return Decision(target, state.target, Reason.LOW_LOAD, words, inputs, wanted, victim=_least_busy(fleet)), state
    words = f"{inputs.waiting} waiting and {inputs.running} running fit {state.target} replicas"
    # A replica that does not start, or a wish that a bound cut off, is a limit that a person may want to lift.
    unbounded = _wanted(state, inputs, replace(limits, maximum=1 << 30), overloaded)[0]
    limited = fleet.stuck or (Limit.MAX_REPLICAS if unbounded > limits.maximum else None)
    return Decision(state.target, state.target, Reason.STEADY, words, inputs, wanted, limited), state


def _wanted(state: State, inputs: Inputs, limits: Limits, overloaded: bool) -> tuple[int, Reason]:
    """The largest of what concurrency, a growing queue, and measured throughput ask for, within the bounds."""
    depth = limits.queue_depth
    held = inputs.running + min(inputs.waiting, inputs.replicas * depth)
    wanted, reason = math.ceil(held / (inputs.capacity + depth)), Reason.CONCURRENCY
    if overloaded and not _clears_in_time(inputs):
        # Replicas on their way are the answer to the queue that called them; only ready ones are evidence for more.
        if state.overloaded_samples >= 2 and not inputs.starting and inputs.replicas + 1 > wanted:
            wanted, reason = inputs.replicas + 1, Reason.QUEUE_GROWTH
        if inputs.throughput:
            horizon = max(limits.objective_seconds, inputs.load_seconds)
            rate = inputs.arrivals_per_second + inputs.waiting / horizon
            if (by_rate := math.ceil(rate / (UTILISATION * inputs.throughput))) > wanted:
                wanted, reason = by_rate, Reason.THROUGHPUT
    return min(max(wanted, limits.minimum), limits.maximum), reason


def _clears_in_time(inputs: Inputs) -> bool:
    """The ready replicas will have worked the backlog off before a new one could serve."""
    spare = (inputs.throughput or 0.0) * inputs.ready - inputs.arrivals_per_second
    return spare > 0 and inputs.waiting / spare <= inputs.load_seconds


def _increase(state: State, fleet: Fleet, inputs: Inputs, *, wanted: int, reason: Reason, now: float) -> Decision:
    hold = state.target
    words = f"{inputs.waiting} waiting, {inputs.running} running on {inputs.ready} ready replicas ask for {wanted}"
    if stuck := fleet.stuck:
        return Decision(
            hold, hold, Reason.STEADY, f"{words}, but one that was added does not start", inputs, wanted, stuck
        )
    base = min([target for when, target in state.before if now - when < STEP_SECONDS], default=hold)
    allowed = max(2 * base, base + 2)
    target = max(hold, min(wanted, allowed))
    limited = Limit.STEP if wanted > allowed else None
    return Decision(target, hold, reason, words, inputs, wanted, limited)


def _may_decrease(state: State, fleet: Fleet, inputs: Inputs, limits: Limits, *, wanted: int, now: float) -> bool:
    """All of: idle enough, nothing in motion, and the whole window agrees. Missing data counts as a full replica.

    A stuck replica is not in motion, and as the Deployment controller removes it first, all ready ones remain.
    """
    stuck = sum(replica.stuck is not None for replica in fleet.replicas)
    remaining = inputs.ready if stuck else inputs.ready - 1
    window = window_of(state, limits)
    watched = bool(state.wanted) and now - state.wanted[0][0] >= window
    highest = max((count for when, count in state.wanted if now - when <= window), default=state.target)
    running = inputs.running + inputs.without_data * inputs.capacity
    return (
        watched
        and max(highest, wanted) < state.target
        and inputs.waiting == 0
        and inputs.starting == stuck
        and not fleet.rolling
        and running <= SHRINK_LOAD * inputs.capacity * remaining
        and (state.last_increase is None or now - state.last_increase >= window)
        and (state.last_decrease is None or now - state.last_decrease >= DECREASE_SECONDS)
    )


def window_of(state: State, limits: Limits) -> float:
    """Seconds a decrease waits; a model that loads slowly is not let go lightly."""
    return max(limits.window_seconds, 2 * state.load_seconds)


def _least_busy(fleet: Fleet) -> str | None:
    ready = [replica for replica in fleet.replicas if replica.ready and replica.load]
    busy = {replica.name: replica.load.running + replica.load.waiting for replica in ready if replica.load}
    return min(sorted(busy), key=lambda name: busy[name], default=None)


def _learn(state: State, fleet: Fleet) -> State:
    """Capacity and start times from this sample."""
    loads = [replica.load for replica in fleet.replicas if replica.ready and replica.load]
    if not loads:
        return state
    ceiling = float(max(load.max_num_seqs for load in loads))
    full = [load.running for load in loads if load.waiting_full and load.running]
    capacity = state.capacity
    if full:
        seen = sum(full) / len(full)
        capacity = seen if capacity is None else capacity + 0.3 * (seen - capacity)
    elif capacity is not None and max(load.kv_usage for load in loads) < 0.5:
        capacity += 0.02 * (ceiling - capacity)  # it was learned with longer requests than come now
    if capacity is not None:
        capacity = min(max(capacity, 1.0, *(float(load.running) for load in loads)), ceiling)
    starts = [load.startup_seconds for load in loads if load.startup_seconds is not None]
    return replace(state, capacity=capacity, load_seconds=max(starts, default=state.load_seconds))


def _measure(state: State, fleet: Fleet, now: float) -> tuple[Inputs, State]:
    """Sums over the fleet, with rates from each replica's counters."""
    ready = [replica for replica in fleet.replicas if replica.ready]
    loads = {replica.name: replica.load for replica in ready if replica.load}
    tracks = {name: _track(state.tracks.get(name), load, now) for name, load in loads.items()}
    arrivals = sum(_rate(state.tracks.get(name), load, now) for name, load in loads.items())
    measured = [rate for name, load in loads.items() if (rate := _throughput(tracks[name], load, now))]
    throughput = sum(measured) / len(measured) if measured else state.throughput
    ceiling = max((load.max_num_seqs for load in loads.values()), default=DEFAULT_CAPACITY)
    inputs = Inputs(
        waiting=sum(load.waiting for load in loads.values()),
        running=sum(load.running for load in loads.values()),
        ready=len(ready),
        starting=sum(not replica.ready for replica in fleet.replicas),
        without_data=len(ready) - len(loads),
        capacity=state.capacity or float(ceiling),
        throughput=throughput,
        arrivals_per_second=arrivals,
        load_seconds=state.load_seconds,
        oldest_wait_seconds=max((load.oldest_wait_seconds for load in loads.values()), default=0.0),
    )
    return inputs, replace(state, tracks=tracks, throughput=throughput)


def _track(before: Track | None, load: Load, now: float) -> Track:
    """The replica's memory after this sample; a counter that shrank means a restarted container: start afresh."""
    if before is None or load.completions_total < before.completions:
        before = Track(now, load.arrivals_total, load.completions_total)
    since, completions = before.backlog_since, before.backlog_completions
    if load.waiting == 0:
        since, completions = None, 0
    elif since is None:
        since, completions = now, load.completions_total
    return Track(now, load.arrivals_total, load.completions_total, since, completions)


def _rate(before: Track | None, load: Load, now: float) -> float:
    """Arrivals per second since the last sample."""
    if before is None or now <= before.seen or load.arrivals_total < before.arrivals:
        return 0.0
    return (load.arrivals_total - before.arrivals) / (now - before.seen)


def _throughput(track: Track, load: Load, now: float) -> float | None:
    """Completions per second over a backlog of at least `BACKLOG_SECONDS`."""
    if track.backlog_since is None or now - track.backlog_since < BACKLOG_SECONDS:
        return None
    return (load.completions_total - track.backlog_completions) / (now - track.backlog_since)


def _remember(state: State, decision: Decision, limits: Limits, now: float) -> State:
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
