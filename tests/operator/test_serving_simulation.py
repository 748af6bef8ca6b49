"""The simulator keeps to its physics, and its peers to their own rules."""

import csv
import itertools
import statistics

import pytest

from octavo_operator.autoscaling import Load
from serving_simulation import loads
from serving_simulation.engine import Engine, Profile
from serving_simulation.policies.fixed import Fixed
from serving_simulation.policies.hpa import Behaviour, Keda, QueueDepthHpa
from serving_simulation.policies.knative import Knative
from serving_simulation.policies.view import PodView, View
from serving_simulation.requests import Outcome, Request
from serving_simulation.scenarios import RECORDED, RECORDING
from serving_simulation.scores import Score, reversals, score
from serving_simulation.service import Simulation, World
from serving_simulation.table import BEGIN, END, replace_in


def run_dry(engine, until=10_000.0):
    return engine.advance(until)


# The engine


def test_one_request_takes_its_prompt_and_its_steps():
    profile = Profile(step_seconds=0.02, decode_seconds=0.001, prefill_rate=1000, budget=100)
    engine = Engine(profile, 0.0)
    engine.submit(Request(0.0, 500, 100))
    (done,) = run_dry(engine)
    prompt = 5 * (0.02 + 100 / 1000)
    assert done.ended == pytest.approx(prompt + 100 * 0.021)


def test_decodes_slow_each_other_by_what_the_profile_says():
    profile = Profile(step_seconds=0.02, decode_seconds=0.001, prefill_rate=1e9)
    engine = Engine(profile, 0.0)
    for _ in range(10):
        engine.submit(Request(0.0, 1, 100))
    assert run_dry(engine)[-1].ended == pytest.approx(100 * 0.03, rel=0.01)


def test_places_are_kept_and_all_requests_end_once():
    engine, ended = Engine(Profile(max_num_seqs=4), 0.0), []
    requests = [Request(0.0, 50, 10 + 7 * n) for n in range(16)]
    for request in requests:
        engine.submit(request)
    now = 0.0
    while engine.running:
        now += 0.05
        ended += engine.advance(now)
        assert engine.running <= 4
    assert sorted(map(id, ended)) == sorted(map(id, requests))
    assert engine.completions == 16
    assert engine.kv_used == pytest.approx(0.0, abs=1e-3)


def test_memory_bounds_what_runs_and_preempted_requests_still_end():
    engine, ended = Engine(Profile(max_num_seqs=64, kv_tokens=1000), 0.0), []
    for _ in range(12):
        engine.submit(Request(0.0, 100, 300))
    now = 0.0
    while engine.running:
        now += 0.05
        ended += engine.advance(now)
        assert engine.kv_used <= 1000 + 1e-3
    assert engine.preemptions > 0
    assert len(ended) == 12


def test_load_tells_why_requests_wait():
    engine = Engine(Profile(max_num_seqs=2), 0.0)
    for _ in range(5):
        engine.submit(Request(0.0, 10, 100))
    assert engine.load(1.0).waiting == engine.load(1.0).waiting_full == 3
    prompts = Engine(Profile(max_num_seqs=8, budget=1000), 0.0)
    for _ in range(5):
        prompts.submit(Request(0.0, 900, 10))
    assert prompts.load(1.0).waiting > 0
    assert prompts.load(1.0).waiting_full == 0, "the token budget holds them, not places or memory"


def test_the_engine_behaves_as_the_real_one_did():
    """The recorded requests, on one simulated engine: as many run as the real one reported, all along."""
    engine, pending = Engine(RECORDED, 0.0), loads.recorded(RECORDING)
    with (RECORDING.parent / "smollm2_chat_load.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    real = {float(row["seconds"]): int(row["running"]) + int(row["waiting"]) for row in rows}
    simulated = {}
    for when in real:
        while pending and pending[0].arrival <= when:
            request = pending.pop(0)
            engine.advance(request.arrival)
            engine.submit(request)
        engine.advance(when)
        simulated[when] = engine.running + len(engine.waiting)
    assert sum(simulated.values()) == pytest.approx(sum(real.values()), rel=0.15)
    assert statistics.correlation(list(simulated.values()), list(real.values())) > 0.75


# The service


def world(rate=2.0, seconds=600.0, **more):
    return World(loads.arrivals(lambda _: rate, seconds, loads.Lengths(100, 60), 1), horizon=seconds, **more)


def test_equal_seeds_give_equal_runs():
    runs = [Simulation(world(), Keda(1, 8, 4), seed=3).run() for _ in range(2)]
    assert runs[0].wanted == runs[1].wanted
    assert [request.ended for request in runs[0].requests] == [request.ended for request in runs[1].requests]


def test_every_request_ends_or_is_still_open():
    record = Simulation(world(rate=30.0), Fixed(1), seed=1).run()
    assert record.refused > 0
    for request in record.requests:
        if request.outcome is Outcome.DONE:
            assert request.arrival <= request.started <= request.ended
        if request.outcome is Outcome.LOST:
            assert request.started is None


def test_pods_take_their_time_and_wait_for_a_node():
    record = Simulation(world(load_seconds=100.0, places=lambda now: 2 if now < 300 else 9), Fixed(3), seed=1).run()
    first, second, third = record.pods
    assert first.ready_at == 0.0
    assert 60 + 90 < second.ready_at < 60 + 10 + 110 + 5
    assert third.scheduled >= 300
    assert third.ready_at >= third.scheduled + 90


def test_requests_spread_over_replicas_and_kept_connections_end():
    record = Simulation(world(rate=5.0, start_replicas=3), Fixed(3), seed=1).run()
    shares = [pod.engine.arrivals / len(record.requests) for pod in record.pods]
    assert all(0.2 < share < 0.5 for share in shares)


# The peers


def view(*waiting, starting=0, pending=0, silent=0):
    """Ready pods with so many waiting each; and others."""
    pods = [PodView(f"r{n}", ready=True, load=Load(waiting=count, max_num_seqs=16)) for n, count in enumerate(waiting)]
    pods += [PodView(f"q{n}", ready=True) for n in range(silent)]
    pods += [PodView(f"s{n}", ready=False) for n in range(starting)]
    pods += [PodView(f"p{n}", ready=False, unschedulable=True) for n in range(pending)]
    return View(tuple(pods), len(pods))


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (view(8, 8), 4),  # twice the target
        (view(4.3, 4.3), 2),  # within the tolerance
        (view(0, 0, 0), 0),  # the bounds come later
        (view(8, 8, pending=2), 4),  # pending pods count as idle upwards: 16 over 4 pods is the target
        (view(9, 9, silent=2), 5),  # so do silent ones
        (view(1, 1, silent=2), 3),  # and as on target downwards: ceil((1 + 1 + 4 + 4) / 4)
        (view(silent=2), None),
    ],
)
def test_the_hpa_by_hand(seen, expected):
    assert QueueDepthHpa(1, 20, 4)._recommend(seen) == expected


def test_keda_sums_what_is_there_and_takes_nothing_for_zero():
    assert Keda(1, 20, 4).choose(view(20, 0), 0.0).replicas == 5
    assert Keda(1, 20, 4).choose(view(silent=3), 0.0).replicas == 1


def test_the_hpa_s_default_behaviour():
    behaviour = Behaviour(1, 100)
    assert behaviour.apply(1, 50, 0.0) == 5  # four pods
    assert behaviour.apply(5, 50, 5.0) == 5  # in fifteen seconds
    assert behaviour.apply(5, 50, 15.0) == 10  # or a doubling
    assert behaviour.apply(10, 1, 200.0) == 10  # the highest of five minutes
    assert behaviour.apply(10, 1, 316.0) == 1


def test_knative_averages_and_panics():
    policy = Knative(1, 20, seats=10)
    for second in range(0, 60, 2):
        assert policy.choose(view(7), float(second)).replicas == 1
    for second in range(60, 68, 2):
        count = policy.choose(view(70), float(second)).replicas
    assert count == 10, "six seconds of ten times the target"
    for second in range(70, 120, 2):
        assert policy.choose(view(7), float(second)).replicas == 10, "in panic nothing is taken back"
    assert policy.choose(view(7), 200.0).replicas == 1


# Scores


def test_scores_by_hand():
    late = Request(0.0, 1, 1, started=50.0, ended=60.0, outcome=Outcome.DONE)
    later = Request(10.0, 1, 1, started=70.0, ended=80.0, outcome=Outcome.DONE)
    quick = Request(0.0, 1, 1, started=1.0, ended=2.0, outcome=Outcome.DONE)
    lost = Request(90.0, 1, 1, ended=95.0, outcome=Outcome.LOST)
    record = Simulation(World([], horizon=100.0), Fixed(1)).run()
    record.requests = [late, later, quick, lost]
    record.wanted = [(10.0, 5), (20.0, 3), (30.0, 4)]
    found = score(record, 30.0, start=1, needed=3)
    assert isinstance(found, Score)
    assert found.late_share == 0.75
    assert found.late_seconds == pytest.approx(70.0 - 30.0)  # 30..50 and 40..70 overlap
    assert (found.peak, found.overshoot, found.reversals, found.lost) == (5, 2, 2, 1)
    assert found.replica_hours == pytest.approx(100 / 3600)


def test_reversals_count_turns_only():
    assert reversals([1, 2, 3, 3, 2, 1, 4]) == 2
    assert reversals([1, 1, 1]) == 0


def test_arrivals_have_the_rate_that_was_asked_for():
    made = loads.arrivals(loads.step(1, 10, 500, 1000), 1000, loads.Lengths(), seed=5)
    early = sum(request.arrival < 500 for request in made)
    assert early == pytest.approx(500, rel=0.15)
    assert len(made) - early == pytest.approx(5000, rel=0.05)
    assert all(first.arrival <= second.arrival for first, second in itertools.pairwise(made))


def test_a_table_goes_between_a_documents_marks_and_nowhere_else(tmp_path):
    document = tmp_path / "page.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    replace_in(document, "new")
    assert document.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    for marks in ("", BEGIN, END, f"{END} {BEGIN}"):
        document.write_text(f"before\n{marks}\nafter\n")
        with pytest.raises(ValueError, match="has no marks"):
            replace_in(document, "new")
        assert document.read_text() == f"before\n{marks}\nafter\n"
