"""The rules, in the order in which they bind: bounds, data, then load."""

from __future__ import annotations

import math
from dataclasses import replace

from octavo_operator.autoscaling.memory import State, remembered, resumed, window_of
from octavo_operator.autoscaling.samples import measured
from octavo_operator.autoscaling.values import (
    DECREASE_SECONDS,
    STEP_REPLICAS,
    STEP_SECONDS,
    Decision,
    Fleet,
    Inputs,
    Limit,
    Limits,
    Reason,
)
from octavo_operator.counted import counted

UTILISATION = 0.8  # of throughput; the rest is headroom for bursts and for the backlog
SHRINK_LOAD = 0.8  # the remaining replicas must be left below this share; inside the 10 % tolerance on decreases


def decide(state: State, fleet: Fleet, limits: Limits, now: float) -> tuple[Decision, State]:
    """One step. Returns what to do and the state for the next call."""
    inputs, state = measured(resumed(state, now), fleet, limits, now)
    clamped = min(max(state.target, limits.minimum), limits.maximum)
    if clamped != state.target:
        reason = Reason.BELOW_MINIMUM if clamped > state.target else Reason.ABOVE_MAXIMUM
        message = f"the bounds are {limits.minimum} to {limits.maximum}"
        victim = fleet.least_busy if clamped < state.target else None
        decision = Decision(clamped, state.target, reason, message, inputs, wanted=clamped, victim=victim)
    elif inputs.ready and inputs.without_data == inputs.ready:
        message = "no ready replica reports its load: the count is held"
        decision = Decision(state.target, state.target, Reason.NO_DATA, message, inputs, wanted=state.target)
    else:
        decision = _follow_load(state, fleet, inputs, limits, now)
    return decision, remembered(state, decision, limits, now)


def _follow_load(state: State, fleet: Fleet, inputs: Inputs, limits: Limits, now: float) -> Decision:
    wanted, reason = _wanted(state, inputs, limits)
    if wanted > state.target:
        return _increase(state, fleet, inputs, wanted=wanted, reason=reason, now=now)
    kept = min(max(wanted, _kept(inputs)), state.target)
    if kept < state.target and _may_decrease(state, fleet, inputs, limits, kept=kept, now=now):
        words = f"{inputs.running} running of {inputs.capacity:.0f} a replica can run, none waiting: one replica less"
        target = state.target - 1
        return Decision(target, state.target, Reason.LOW_LOAD, words, inputs, kept, victim=fleet.least_busy)
    words = f"{inputs.waiting} waiting and {inputs.running} running fit {counted(state.target, 'replica')}"
    # A replica that does not start, or a wish that a bound cut off, is a limit that a person may want to lift.
    unbounded = _wanted(state, inputs, replace(limits, maximum=1 << 30))[0]
    limited = fleet.stuck or (Limit.MAX_REPLICAS if unbounded > limits.maximum else None)
    return Decision(state.target, state.target, Reason.STEADY, words, inputs, kept, limited)


def _wanted(state: State, inputs: Inputs, limits: Limits) -> tuple[int, Reason]:
    """The largest of what concurrency, a growing queue, and rates ask for, within the bounds."""
    allowed, silent = inputs.visible * limits.queue_depth, inputs.without_data
    held = inputs.running + min(inputs.waiting, allowed)
    wanted, reason = silent + math.ceil(held / (inputs.capacity + limits.queue_depth)), Reason.CONCURRENCY
    if inputs.waiting > allowed and not _clears_in_time(inputs):
        # One sample a little over the target is noise. Replicas on their way, and those that have just come, are the
        # answer to the queue that called them; only others are evidence for more.
        if state.overload >= 2 and not inputs.starting and inputs.replicas + 1 > wanted:
            wanted, reason = inputs.replicas + 1, Reason.QUEUE_GROWTH
        if inputs.throughput:
            horizon = max(limits.objective_seconds, inputs.load_seconds)
            backlog = 0 if inputs.starting else inputs.waiting
            rate = inputs.arrivals_per_second + backlog / horizon
            if (by_rate := silent + math.ceil(rate / (UTILISATION * inputs.throughput))) > wanted:
                wanted, reason = by_rate, Reason.THROUGHPUT
    return min(max(wanted, limits.minimum), limits.maximum), reason


def _clears_in_time(inputs: Inputs) -> bool:
    """The ready replicas will have worked the backlog off before a new one could serve."""
    spare = (inputs.throughput or 0.0) * (inputs.ready - inputs.without_data) - inputs.arrivals_per_second
    return spare > 0 and inputs.waiting / spare <= inputs.load_seconds


def _kept(inputs: Inputs) -> int:
    """The fewest replicas that the smoothed load leaves below `SHRINK_LOAD`; a silent one counts as full."""
    by_places = (inputs.mean_running + inputs.without_data * inputs.capacity) / inputs.capacity
    by_rate = 0.0
    if inputs.throughput:
        by_rate = inputs.completions_per_second / inputs.throughput + inputs.without_data
    return math.ceil(max(by_places, by_rate) / SHRINK_LOAD)


def _increase(state: State, fleet: Fleet, inputs: Inputs, *, wanted: int, reason: Reason, now: float) -> Decision:
    hold = state.target
    ready = counted(inputs.ready, "ready replica")
    words = f"{inputs.waiting} waiting, {inputs.running} running on {ready} ask for {wanted}"
    if stuck := fleet.stuck:
        words = f"{words}, but one that was added does not start"
        return Decision(hold, hold, Reason.STEADY, words, inputs, wanted, stuck)
    base = min([target for when, target in state.before if now - when < STEP_SECONDS], default=hold)
    allowed = max(2 * base, base + STEP_REPLICAS)
    target = max(hold, min(wanted, allowed))
    limited = Limit.STEP if wanted > allowed else None
    return Decision(target, hold, reason, words, inputs, wanted, limited)


def _may_decrease(state: State, fleet: Fleet, inputs: Inputs, limits: Limits, *, kept: int, now: float) -> bool:
    """All of: idle enough, nothing in motion, and the whole window agrees.

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
        and max(highest, kept) < state.target
        and inputs.waiting == 0
        and inputs.starting == stuck
        and not fleet.rolling
        and running <= SHRINK_LOAD * inputs.capacity * remaining
        and (state.last_increase is None or now - state.last_increase >= window)
        and (state.last_decrease is None or now - state.last_decrease >= DECREASE_SECONDS)
    )
