"""The autoscaler's rules, each by itself, and properties over arbitrary samples."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator import autoscaling
from octavo_operator.autoscaling import Fleet, Limit, Limits, Load, Reason, Replica, State, decide

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


# Rules


def test_one_sample_over_the_target_is_noise():
    decision, state = feed(State(target=1), replicas(1, waiting=5, running=2))
    assert not decision.changed
    decision, _ = feed(state, replicas(1, waiting=5, running=2), start=5.0)
    assert (decision.replicas, decision.reason) == (2, Reason.QUEUE_GROWTH)


def test_one_sample_of_twice_the_target_is_none():
    decision, _ = feed(State(target=1), replicas(1, waiting=9, running=2))
    assert (decision.replicas, decision.reason) == (2, Reason.QUEUE_GROWTH)


def test_a_replica_that_has_just_come_is_an_answer_and_the_first_one_is_none():
    none = Fleet((Replica("pod-0", ready=False),))
    queue = {"waiting": 12, "waiting_full": 12, "running": 8}
    _, state = feed(State(target=1), none, times=3)
    decision, _ = feed(state, replicas(1, **queue), start=15.0)
    assert decision.replicas == 2, "nothing was there before it that could have called it"
    _, state = feed(State(target=2), replicas(1, starting=1, **queue), times=3)
    both = Fleet((*replicas(1, **queue), Replica("new-0", ready=True, load=Load(max_num_seqs=8))))
    decision, state = feed(state, both, times=3, start=15.0)
    assert decision.replicas == 2, "it takes a moment until it has its share"
    decision, _ = feed(state, both, times=2, start=30.0)
    assert decision.replicas == 3


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


def test_the_step_is_at_most_a_doubling_or_four():
    limits, state = Limits(minimum=1, maximum=64), State(target=2, throughput=0.01, capacity=1.0)
    decision, state = feed(state, replicas(2, waiting=900, running=8), limits=limits)
    assert decision.replicas == 6
    assert decision.limited is Limit.STEP
    decision, state = feed(state, replicas(6, waiting=900, running=8), limits=limits, start=5.0)
    assert decision.replicas == 6
    decision, _ = feed(state, replicas(6, waiting=900, running=8), limits=limits, start=16.0)
    assert decision.replicas == 12


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


# Time and data that cannot be trusted


def test_silent_replicas_neither_absorb_a_queue_nor_add_to_it():
    """6 waiting at the one replica that reports, of three: more than its share of 4, although three could hold 12."""
    fleet = Fleet((*replicas(1, waiting=6, running=8), *(Replica(f"silent-{n}", ready=True) for n in range(2))))
    decision, _ = feed(State(target=3), fleet, times=2)
    assert (decision.replicas, decision.reason) == (4, Reason.QUEUE_GROWTH)


def test_after_a_pause_a_whole_window_is_watched_again():
    """The process was stopped for an hour: what happened meanwhile is unknown."""
    _, state = feed(State(target=3), Fleet(replicas(3)), times=55)
    decision, state = feed(state, Fleet(replicas(3)), start=3600.0)
    assert not decision.changed
    decision, _ = feed(state, Fleet(replicas(3)), times=61, start=3605.0)
    assert decision.replicas == 2


def test_a_pause_is_no_backlog():
    """A queue before a pause and one after it do not prove that it lasted, nor what was completed in it."""
    _, state = feed(State(target=1), Fleet(replicas(1, waiting=3, running=8, completions_total=10)), times=3)
    later = Fleet(replicas(1, waiting=3, running=8, completions_total=20_000))
    decision, state = feed(state, later, start=900.0)
    assert decision.inputs.throughput is None
    assert state.throughput is None


def test_a_clock_that_runs_backwards_starts_anew():
    _, state = feed(State(target=3), Fleet(replicas(3)), times=55, start=10_000.0)
    decision, state = feed(state, Fleet(replicas(3)), times=55, start=0.0)
    assert decision.replicas == 3
    decision, _ = feed(state, Fleet(replicas(3)), times=10, start=275.0)
    assert decision.replicas == 2


@pytest.mark.parametrize("offset", [-600.0, 600.0, 1e9])
def test_decisions_know_differences_of_time_only(offset):
    def counts(start):
        state, made = State(target=1), []
        for n in range(200):
            busy = {"waiting": 12, "running": 8} if n < 20 else {}
            load = {"arrivals_total": min(n, 20) * 10, "completions_total": n * 4} | busy
            decision, state = decide(state, Fleet(replicas(state.target, **load)), LIMITS, start + 5.0 * n)
            made.append((decision.replicas, decision.reason))
        return made

    assert counts(1000.0 + offset) == counts(1000.0)


def test_a_load_that_has_just_begun_is_not_taken_for_slow_requests():
    """Nothing has been completed yet, because nothing could have been: that is no throughput of nearly zero."""
    state, decision = State(target=1), None
    for n in range(4):
        load = {"waiting": 9, "running": 8, "arrivals_total": 8 + n, "completions_total": 1 if n == 3 else 0}
        decision, state = decide(state, Fleet(replicas(1, **load)), LIMITS, 5.0 * n)
    assert decision.inputs.throughput is None
    assert decision.wanted <= 2


def test_how_long_requests_run_tells_what_a_replica_completes():
    """4 running and 2 completed a second: 2 s each, so that 8 places complete 4 a second. 12 a second need 4."""
    state, total = State(target=1), 0
    for n in range(60):
        total += 10
        load = {"running": 4, "arrivals_total": total, "completions_total": total}
        decision, state = decide(state, Fleet(replicas(1, **load)), LIMITS, 5.0 * n)
    assert decision.inputs.throughput == pytest.approx(4.0, rel=0.05)
    load = {"running": 8, "waiting": 16, "arrivals_total": total + 64, "completions_total": total + 20}
    decision, _ = decide(state, Fleet(replicas(1, **load)), LIMITS, 300.0)
    assert (decision.replicas, decision.reason) == (4, Reason.THROUGHPUT)


def test_arrivals_are_remembered_while_a_full_queue_admits_no_more_than_it_completes():
    state, came, ended, decision = State(target=1, throughput=1.0, throughput_at=0.0), 0, 0, None
    for n in range(20):
        came += 50 if 4 <= n < 7 else 5
        ended += 5
        load = {"running": 8, "waiting": 32, "arrivals_total": came, "completions_total": ended}
        decision, state = decide(state, Fleet(replicas(1, starting=1, **load)), LIMITS, 5.0 * n)
    assert decision.inputs.arrivals_per_second > 8
    load = {"running": 8, "waiting": 20, "arrivals_total": came + 5, "completions_total": ended + 17}
    decision, _ = decide(state, Fleet(replicas(1, starting=1, **load)), LIMITS, 100.0)
    assert decision.inputs.arrivals_per_second < 3, "the queue drains: what arrives is what is seen"


def test_a_wave_that_comes_with_a_new_replica_is_smoothed():
    """Requests that were refused elsewhere try again at once where there is room."""
    state = State(target=2, throughput=1.0)
    for n in range(10):
        load = {"running": 8, "waiting": 32, "arrivals_total": 5 * n, "completions_total": 5 * n}
        _, state = decide(state, Fleet(replicas(1, starting=1, **load)), LIMITS, 5.0 * n)
    new = Replica("new", ready=True, load=Load(waiting=32, running=8, max_num_seqs=8, arrivals_total=0))
    for n, came in ((10, 0), (11, 100), (12, 105)):
        old = replicas(1, running=8, waiting=32, arrivals_total=5 * n, completions_total=5 * n)
        wave = (Replica("new", ready=True, load=replace(new.load, arrivals_total=came)),)
        decision, state = decide(state, Fleet((*old, *wave)), LIMITS, 5.0 * n)
    assert decision.inputs.arrivals_per_second < 12, "21 a second in one sample of five seconds"


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
def test_no_increase_beyond_a_doubling_or_four_in_the_step_time(series):
    history = replay(Limits(1, 64), series)
    for now, _, decision in history:
        recent = [earlier.previous for when, _, earlier in history if now - autoscaling.STEP_SECONDS < when <= now]
        assert decision.replicas <= max(2 * min(recent), min(recent) + autoscaling.STEP_REPLICAS)


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


@settings(max_examples=40, deadline=None)
@given(samples)
def test_a_decrease_has_a_watched_window_behind_it(series):
    began = previous = -math.inf
    for now, _, decision in replay(LIMITS, series):
        if now - previous > autoscaling.GAP_SECONDS:
            began = now
        previous = now
        if decision.replicas < decision.previous:
            assert now - began >= LIMITS.window_seconds


@settings(max_examples=40, deadline=None)
@given(samples)
def test_while_a_replica_is_stuck_none_is_added_and_it_is_told(series):
    for _, fleet, decision in replay(LIMITS, series, target=4):
        if fleet.stuck and decision.reason is not Reason.NO_DATA:
            assert decision.replicas <= decision.previous
            assert decision.limited is fleet.stuck or decision.changed


@settings(max_examples=40, deadline=None)
@given(samples)
def test_the_victim_is_ready_and_no_other_has_fewer_requests(series):
    for _, fleet, decision in replay(LIMITS, series, target=8):
        if decision.replicas < decision.previous and decision.victim:
            busy = {name: load.running + load.waiting for name, load in fleet.loads.items()}
            assert busy[decision.victim] == min(busy.values())
