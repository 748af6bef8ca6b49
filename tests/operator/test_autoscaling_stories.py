"""The autoscaler in virtual time: loads that come and go, on the engines, pods and clients of the simulator."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.autoscaling import Limits, Reason
from serving_simulation import loads
from serving_simulation.comparison import LIMITS, POLICIES, needs
from serving_simulation.engine import Profile
from serving_simulation.policies.octavo import Octavo
from serving_simulation.requests import Outcome
from serving_simulation.scenarios import OBJECTIVE, SCENARIOS
from serving_simulation.scores import score
from serving_simulation.service import Simulation, World

SHORT = loads.Lengths(prompt=200, output=120)


def play(rate, seconds=1800.0, limits=LIMITS, seed=1, lengths=SHORT, **world):
    """Runs the policy that ships; returns it with its decisions, and the record."""
    policy = Octavo(limits)
    made = World(loads.arrivals(rate, seconds, lengths, seed), horizon=seconds, **world)
    return policy, Simulation(made, policy, seed).run()


def assert_at_most_one_reversal_per_window(changes, window, start=1):
    """A decrease that follows an increase comes a whole window later."""
    counts = [start, *(count for _, count in changes)]
    steps = [(when, after - before) for (when, after), before in zip(changes, counts, strict=False)]
    for (earlier, first), (later, second) in itertools.pairwise(steps):
        if first > 0 > second:
            assert later - earlier >= window


def test_a_step_of_load_is_answered_within_ten_seconds():
    _, record = play(loads.step(0.5, 12, 300, 1800), seconds=400)
    when, count = record.wanted[0]
    assert 300 <= when <= 310
    assert count >= 3


def test_the_first_answer_to_a_step_is_near_what_the_load_needs():
    policy, _ = play(loads.step(0.5, 12, 300, 1800), seconds=600)
    world = World(loads.arrivals(lambda _: 12, 600, SHORT, 1), horizon=600)
    assert max(decision.replicas for _, decision in policy.decisions) <= needs(world) + 2


def test_a_load_that_stays_is_served_by_few_more_than_it_needs():
    world = World(loads.arrivals(lambda _: 6, 1800, SHORT, 1), horizon=1800)
    record = Simulation(world, Octavo(LIMITS)).run()
    assert record.wanted[-1][1] <= needs(world) + 1
    assert score(record, OBJECTIVE, 1, 1).late_share < 0.02


def test_a_burst_that_the_replicas_clear_in_time_adds_none():
    """40 requests at once on two replicas that have shown what they do; a new one would come after the fact."""
    policy, record = play(lambda now: 5.0, seconds=900, start_replicas=2)
    world = World(
        [*record.requests, *(replace(record.requests[0], arrival=600.0) for _ in range(8))],
        horizon=900,
        start_replicas=2,
        load_seconds=120,
    )
    policy = Octavo(replace(LIMITS, minimum=2))
    Simulation(world, policy).run()
    assert {decision.replicas for _, decision in policy.decisions} == {2}


def test_load_that_ends_is_followed_down_one_by_one_to_the_minimum():
    policy, record = play(loads.step(0, 12, 0, 600), seconds=3000)
    counts = [count for _, count in record.wanted]
    peak = counts.index(max(counts))
    assert counts[peak:] == list(range(counts[peak], 0, -1))
    assert policy.decisions[-1][1].replicas == LIMITS.minimum


def test_a_decrease_cuts_nobody_and_sends_nobody_away():
    """Answers of half a minute run while replicas go: each ends where it began."""
    lengths = loads.Lengths(prompt=100, output=900, spread=0.2)
    _, record = play(loads.step(0.3, 4, 0, 900), seconds=3000, lengths=lengths)
    assert any(pod.stopping for pod in record.pods)
    assert not [request for request in record.requests if request.outcome is Outcome.CUT]


@pytest.mark.parametrize("period", [60, 300])
def test_a_sawtooth_does_not_flap(period):
    _, record = play(loads.sawtooth(0.5, 12, period), seconds=3600)
    assert_at_most_one_reversal_per_window(record.wanted, LIMITS.window_seconds)


def test_without_metrics_the_count_is_held_and_told():
    policy, _ = play(lambda _: 8.0, seconds=1800, silent=lambda _, now: now > 600)
    silent = [decision for when, decision in policy.decisions if when > 610]
    assert {decision.reason for decision in silent} == {Reason.NO_DATA}
    assert len({decision.replicas for decision in silent}) == 1


def test_no_node_for_a_replica_is_told_and_not_asked_for_again():
    policy, _ = play(lambda _: 12.0, seconds=900, places=lambda _: 2)
    told = [decision for when, decision in policy.decisions if when > 120]
    assert {decision.limited and decision.limited.value for decision in told} == {"PodsUnschedulable"}
    assert len({decision.replicas for decision in told}) == 1


def test_a_slow_loader_is_not_asked_for_twice():
    policy, _ = play(loads.step(1, 10, 300, 1800), load_seconds=240.0)
    waits = {decision.replicas for when, decision in policy.decisions if 330 < when < 520}
    assert len(waits) == 1, "replicas on their way are the answer"


def test_a_queue_for_memory_is_answered_although_the_batch_has_places():
    _, record = play(lambda _: 6.0, seconds=900, profile=Profile(max_num_seqs=64, kv_tokens=4000))
    assert record.wanted[-1][1] >= 3


def test_an_operator_that_restarts_in_the_middle_changes_nothing_at_once():
    world = World(loads.arrivals(lambda _: 10, 1200, SHORT, 1), horizon=1200, start_replicas=5)

    class Restarting(Octavo):
        def choose(self, view, now):
            if 600 <= now < 605:
                self.state = None
            return super().choose(view, now)

    record = Simulation(world, Restarting(LIMITS)).run()
    assert not [when for when, _ in record.wanted if 600 <= when < 900]


def test_recorded_users_are_served_without_flapping():
    """A conversation load as a real engine met it (serving_simulation/data), played thrice."""
    (scenario,) = [one for one in SCENARIOS if one.name == "recorded"]
    world = scenario.world(1)
    record = Simulation(world, Octavo(LIMITS), 1).run()
    assert score(record, OBJECTIVE, 1, 0).late_share < 0.01
    assert max(count for _, count in record.wanted) <= needs(world) + 2
    assert_at_most_one_reversal_per_window(record.wanted, LIMITS.window_seconds)


@settings(max_examples=6, deadline=None)
@given(st.lists(st.floats(0, 8), min_size=8, max_size=20), st.integers(1, 3))
def test_at_most_one_reversal_per_window(levels, seed):
    _, record = play(lambda now: levels[int(now / 60) % len(levels)] + 0.01, seconds=1200, seed=seed)
    assert_at_most_one_reversal_per_window(record.wanted, LIMITS.window_seconds)
    assert all(LIMITS.minimum <= count <= LIMITS.maximum for _, count in record.wanted)


@pytest.mark.parametrize("name", ["long prompts", "all silent"])
def test_what_the_documentation_says_of_the_peers(name):
    """The full comparison takes minutes (`make bench-autoscaling`); these two loads stand for it."""
    (scenario,) = [one for one in SCENARIOS if one.name == name]
    world = scenario.world(1)
    scores = {
        policy: score(Simulation(world, make(world), 1).run(), OBJECTIVE, world.start_replicas, 0)
        for policy, make in POLICIES.items()
    }
    ours = scores.pop("Octavo")
    for peer in scores.values():
        assert ours.late_share < peer.late_share
        assert ours.reversals < peer.reversals
        assert ours.peak < peer.peak


def test_limits_of_the_comparison_are_those_of_the_resource():
    assert Limits(1, 12, queue_depth=4, objective_seconds=30.0, window_seconds=300.0) == LIMITS
