"""The autoscaler in virtual time: stories of load, each rule by itself, and properties over arbitrary samples."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator import autoscaling
from octavo_operator.autoscaling import Fleet, Limit, Limits, Load, Reason, Replica, State, decide
from serving_simulation import Simulation

LIMITS = Limits(minimum=1, maximum=8)


def replicas(count, starting=0, **load):
    ready = [Replica(f"pod-{n}", ready=True, load=Load(**({"max_num_seqs": 8} | load))) for n in range(count)]
    return (*ready, *(Replica(f"new-{n}", ready=False) for n in range(starting)))


def feed(state, fleet, *, limits=LIMITS, times=1, start=0.0):
    """The last decision of several equal samples."""
    decision = None
    fleet = fleet if isinstance(fleet, Fleet) else Fleet(fleet)
    for n in range(times):
        decision, state = decide(state, fleet, limits, start + 5.0 * n)
    return decision, state


# Stories


def test_a_step_of_load_is_answered_within_ten_seconds():
    simulation = Simulation(LIMITS, arrivals=lambda now: 0 if now < 60 else 12)
    simulation.run(120)
    when, count = simulation.changes()[0]
    assert 60 <= when <= 70
    assert count >= 2


def test_enough_replicas_and_not_many_more():
    """2.4 requests/s of 10 s each keep 24 seats busy: 3 replicas of 8, 4 with headroom."""
    simulation = Simulation(Limits(1, 16), arrivals=lambda now: 12)
    simulation.run(1200)
    assert not simulation.ready[0].waiting
    assert max(count for _, count in simulation.changes()) <= 8, (
        "the backlog of the first minute is cleared, not kept up with"
    )
    assert simulation.decisions[-1][1].replicas in (3, 4, 5)


def test_a_huge_backlog_is_not_taken_for_concurrency():
    """2,000 requests at once on one replica: adding 60 replicas would be far more than the objective needs."""
    simulation = Simulation(Limits(1, 64), arrivals=lambda now: 500 if now < 20 else 0, start_seconds=60.0)
    simulation.run(600)
    assert max(count for _, count in simulation.changes()) < 64


def test_a_spike_that_clears_in_time_adds_nothing():
    state = State(target=2, throughput=2.0, load_seconds=60.0, capacity=8.0)
    decision, _ = feed(state, replicas(2, waiting=20, waiting_full=20, running=8), times=6)
    assert decision.reason is Reason.STEADY


def test_load_that_ends_is_followed_down_to_the_minimum():
    simulation = Simulation(LIMITS, arrivals=lambda now: 12 if now < 600 else 0)
    simulation.run(3600)
    counts = [count for _, count in simulation.changes()]
    peak = counts.index(max(counts))
    assert counts[peak:] == sorted(counts[peak:], reverse=True)
    assert simulation.decisions[-1][1].replicas == LIMITS.minimum


@pytest.mark.parametrize("period", [60, 120, 240])
def test_a_sawtooth_does_not_flap(period):
    simulation = Simulation(LIMITS, arrivals=lambda now: 14 if now % period < period / 2 else 1)
    simulation.run(3600)
    assert_at_most_one_reversal_per_window(simulation.changes(), LIMITS.window_seconds)


def test_dead_metrics_hold_the_count():
    simulation = Simulation(LIMITS, arrivals=lambda now: 12, silent=lambda name, now: now > 300)
    simulation.run(300)
    before = simulation.decisions[-1][1].replicas
    simulation.run(1200)
    assert simulation.decisions[-1][1].replicas == before
    assert simulation.decisions[-1][1].reason is Reason.NO_DATA


# Rules


def test_one_sample_over_the_target_is_noise():
    decision, state = feed(State(target=1), replicas(1, waiting=5, running=2))
    assert not decision.changed
    decision, _ = feed(state, replicas(1, waiting=5, running=2), start=5.0)
    assert (decision.replicas, decision.reason) == (2, Reason.QUEUE_GROWTH)


def test_replicas_on_their_way_are_capacity():
    decision, _ = feed(State(target=2), replicas(1, starting=1, waiting=9, waiting_full=9, running=8), times=10)
    assert decision.replicas == 2


def test_an_unschedulable_replica_stops_increases():
    fleet = Fleet((*replicas(3, waiting=40, running=8), Replica("new", ready=False, stuck=Limit.UNSCHEDULABLE)))
    decision, _ = feed(State(target=4, capacity=2.0, throughput=0.01), fleet, times=3)
    assert decision.replicas == 4
    assert decision.limited is Limit.UNSCHEDULABLE


@pytest.mark.parametrize("stuck", [Limit.UNSCHEDULABLE, Limit.FAILING])
def test_a_replica_that_does_not_start_is_a_limit(stuck):
    fleet = Fleet((*replicas(1, waiting=9, running=8), Replica("new", ready=False, stuck=stuck)))
    decision, _ = feed(State(target=2), fleet)
    assert (decision.replicas, decision.limited) == (2, stuck)


def test_a_stuck_replica_is_given_up_when_the_load_is_gone():
    fleet = Fleet((*replicas(1), Replica("new", ready=False, stuck=Limit.UNSCHEDULABLE)))
    decision, _ = feed(State(target=2), fleet, times=70)
    assert decision.replicas == 1


def test_the_step_is_at_most_a_doubling_or_two():
    state = State(target=2, throughput=0.01, capacity=1.0)
    decision, state = feed(state, replicas(2, waiting=900, running=8))
    assert decision.replicas == 4
    assert decision.limited is Limit.STEP
    decision, state = feed(state, replicas(4, waiting=900, running=8), start=5.0)
    assert decision.replicas == 4
    decision, _ = feed(state, replicas(4, waiting=900, running=8), start=16.0)
    assert decision.replicas == 8


def test_at_the_maximum_it_says_so():
    state = State(target=8, throughput=0.01, capacity=1.0)
    decision, _ = feed(state, replicas(8, waiting=900, running=8), times=3)
    assert decision.replicas == 8
    assert decision.limited is Limit.MAX_REPLICAS


def test_new_bounds_hold_at_once():
    decision, _ = feed(State(target=1), replicas(1), limits=Limits(3, 5))
    assert (decision.replicas, decision.reason) == (3, Reason.BELOW_MINIMUM)
    decision, _ = feed(State(target=8), replicas(8), limits=Limits(1, 5))
    assert (decision.replicas, decision.reason) == (5, Reason.ABOVE_MAXIMUM)


def test_capacity_is_learned_from_full_replicas_only():
    _, state = feed(State(target=1), Fleet(replicas(1, running=3)))
    assert state.capacity is None
    _, state = feed(State(target=1), Fleet(replicas(1, running=3, waiting=2, waiting_full=2)))
    assert state.capacity == 3.0
    _, state = feed(state, Fleet(replicas(1, running=6)), start=5.0)
    assert state.capacity == 6.0, "a replica that runs more shows that it can"


def test_capacity_is_relearned_while_the_cache_has_room():
    state = State(target=1, capacity=3.0)
    _, state = feed(state, Fleet(replicas(1, running=1, kv_usage=0.1)), times=100)
    assert state.capacity > 6.0
    _, stuck = feed(State(target=1, capacity=3.0), Fleet(replicas(1, running=1, kv_usage=0.9)), times=100)
    assert stuck.capacity == 3.0


def test_a_restarted_container_gives_no_negative_rate():
    state = State(target=1)
    _, state = feed(state, Fleet(replicas(1, arrivals_total=1000, completions_total=1000)))
    decision, _ = feed(state, Fleet(replicas(1, arrivals_total=3)), start=5.0)
    assert decision.inputs.arrivals_per_second == 0.0


@pytest.mark.parametrize("missing", [1, 2])
def test_a_silent_replica_counts_as_full_for_decreases(missing):
    fleet = Fleet((*replicas(3 - missing), *(Replica(f"silent-{n}", ready=True) for n in range(missing))))
    decision, _ = feed(State(target=3), fleet, times=65)
    assert decision.replicas == (2 if missing == 1 else 3)


@pytest.mark.parametrize("fleet", [Fleet(replicas(3, starting=1)), Fleet(replicas(3), rolling=True)])
def test_nothing_is_lowered_while_something_moves(fleet):
    decision, _ = feed(State(target=4), fleet, times=200)
    assert decision.replicas == 4


def test_a_slow_loader_is_not_let_go_lightly():
    fleet = Fleet(replicas(2, startup_seconds=600.0))
    decision, _ = feed(State(target=2), fleet, times=200)
    assert not decision.changed
    decision, _ = feed(State(target=2), fleet, times=245)
    assert decision.replicas == 1


def test_the_victim_is_the_least_busy():
    pods = (
        Replica("a", ready=True, load=Load(running=3, max_num_seqs=64)),
        Replica("b", ready=True, load=Load(running=1, max_num_seqs=64)),
        Replica("c", ready=True, load=Load(running=2, max_num_seqs=64)),
    )
    state, decision = State(target=3), None
    for n in range(100):
        decision, state = decide(state, Fleet(pods), LIMITS, 5.0 * n)
        if decision.changed:
            break
    assert decision.replicas == 2
    assert decision.victim == "b"


def test_a_fresh_state_waits_a_whole_window():
    """After an operator restart nothing is known of the last minutes."""
    decision, _ = feed(State(target=3), Fleet(replicas(3)), times=60)
    assert not decision.changed


# Properties

loads = st.builds(
    Load,
    waiting=st.integers(0, 500),
    waiting_full=st.integers(0, 500),
    running=st.integers(0, 64),
    max_num_seqs=st.integers(1, 64),
    arrivals_total=st.integers(0, 10_000),
    completions_total=st.integers(0, 10_000),
    oldest_wait_seconds=st.floats(0, 1e4),
    kv_usage=st.floats(0, 1),
    startup_seconds=st.none() | st.floats(0, 900),
)
pods = st.builds(
    Replica,
    name=st.sampled_from([f"pod-{n}" for n in range(12)]),
    ready=st.booleans(),
    stuck=st.none() | st.sampled_from([Limit.UNSCHEDULABLE, Limit.FAILING]),
    load=st.none() | loads,
)
fleets = st.builds(
    Fleet,
    replicas=st.lists(pods, max_size=6, unique_by=lambda pod: pod.name).map(tuple),
    rolling=st.booleans(),
)
samples = st.lists(st.tuples(fleets, st.floats(0.1, 120)), min_size=1, max_size=30)
bounds = st.tuples(st.integers(1, 10), st.integers(0, 10)).map(lambda pair: Limits(pair[0], pair[0] + pair[1]))


def replay(limits, series, target=1):
    state, now, decisions = State(target=target), 0.0, []
    for fleet, gap in series:
        now += gap
        decision, state = decide(state, fleet, limits, now)
        decisions.append((now, fleet, decision))
    return decisions


@settings(max_examples=40, deadline=None)
@given(bounds, samples, st.integers(0, 30))
def test_bounds_are_kept(limits, series, target):
    for _, _, decision in replay(limits, series, target):
        assert limits.minimum <= decision.replicas <= limits.maximum
        assert math.isfinite(decision.inputs.capacity)


@settings(max_examples=40, deadline=None)
@given(samples)
def test_without_any_data_the_count_is_held(series):
    for _, fleet, decision in replay(LIMITS, series):
        ready = [pod for pod in fleet.replicas if pod.ready]
        if ready and not any(pod.load for pod in ready):
            assert not decision.changed


@settings(max_examples=40, deadline=None)
@given(samples)
def test_no_increase_beyond_a_doubling_or_two_in_the_step_time(series):
    history = replay(Limits(1, 64), series)
    for now, _, decision in history:
        recent = [earlier.previous for when, _, earlier in history if now - autoscaling.STEP_SECONDS < when <= now]
        assert decision.replicas <= max(2 * min(recent), min(recent) + 2)


@settings(max_examples=40, deadline=None)
@given(samples)
def test_no_decrease_under_waiting_requests_motion_or_soon_after_an_increase(series):
    last_up = last_down = -math.inf
    for now, fleet, decision in replay(LIMITS, series):
        if decision.replicas < decision.previous:
            assert decision.inputs.waiting == 0
            assert not fleet.rolling
            assert decision.previous - decision.replicas == 1
            assert now - last_up >= LIMITS.window_seconds
            assert now - last_down >= autoscaling.DECREASE_SECONDS
            last_down = now
        elif decision.changed:
            last_up = now


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=20, max_size=60), st.integers(0, 1))
def test_at_most_one_reversal_per_window(levels, shift):
    simulation = Simulation(LIMITS, arrivals=lambda now: levels[int(now / 60 + shift) % len(levels)])
    simulation.run(1800)
    assert_at_most_one_reversal_per_window(simulation.changes(), LIMITS.window_seconds)


def assert_at_most_one_reversal_per_window(changes, window):
    """A decrease that follows an increase comes a whole window later."""
    steps = [(when, count - before) for (_, before), (when, count) in zip([(0, 1), *changes], changes, strict=False)]
    for (earlier, first), (later, second) in itertools.pairwise(steps):
        if first > 0 > second:
            assert later - earlier >= window
