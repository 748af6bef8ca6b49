"""The estimated queue where the load turns into another kind: it is what those who come then really wait.

On the real scheduler, pacer and metrics, in simulated time.
"""

from __future__ import annotations

import pytest

from simulated_engine import Judged, Kind, SimulatedEngine

SHORT, LONG_PROMPT, LONG_ANSWER = Kind(60, 16), Kind(1500, 8), Kind(20, 200)
LEAST_SECONDS = 0.5  # below, a step more or less decides


def far_off(judged: list[Judged], times: float = 2.0) -> list[Judged]:
    """Those that waited more, or less, than so many times what was said."""
    assert max(each.waited for each in judged) > 3.0, "nobody waits for long"
    long = [each for each in judged if each.waited >= LEAST_SECONDS]
    return [each for each in long if not each.waited / times <= each.said <= each.waited * times]


@pytest.mark.parametrize(("kind", "number"), [(SHORT, 60), (LONG_PROMPT, 20)])
def test_the_first_burst_after_a_start(kind: Kind, number: int) -> None:
    """Nothing was measured: by the roofline."""
    assert far_off(SimulatedEngine().burst(kind, number)) == []


def test_an_idle_engine_and_a_burst_of_short_prompts() -> None:
    engine = SimulatedEngine()
    engine.serve(SHORT, 1, 5.0)
    engine.rest(5.0)
    assert far_off(engine.burst(SHORT, 60)) == []


@pytest.mark.parametrize("seats", [8, 64])
@pytest.mark.parametrize("clients", [4, 12])
def test_long_answers_and_then_long_prompts(clients: int, seats: int) -> None:
    """Twelve clients of eight seats: each prompt of theirs waits for an answer to end, which says nothing of others."""
    engine = SimulatedEngine(seats=seats)
    engine.serve(LONG_ANSWER, clients, 30.0)
    assert far_off(engine.burst(LONG_PROMPT, 30)) == []


@pytest.mark.parametrize("clients", [4, 12])
def test_long_prompts_and_then_long_answers(clients: int) -> None:
    engine = SimulatedEngine()
    engine.serve(LONG_PROMPT, clients, 30.0)
    assert len(far_off(engine.burst(LONG_ANSWER, 40))) <= 1  # the last to find a seat, or the first to find none


@pytest.mark.parametrize(("before", "then"), [(LONG_ANSWER, LONG_PROMPT), (LONG_PROMPT, SHORT)])
def test_after_a_long_rest_the_jam_is_forgotten(before: Kind, then: Kind) -> None:
    engine = SimulatedEngine()
    engine.serve(before, 12, 30.0)
    engine.rest(600.0)
    assert far_off(engine.burst(then, 50)) == []


@pytest.mark.parametrize("kind", [LONG_PROMPT, LONG_ANSWER])
def test_a_queue_that_goes_on_as_it_was(kind: Kind) -> None:
    engine = SimulatedEngine()
    engine.serve(kind, 12, 30.0)
    assert far_off(engine.burst(kind, 8)) == []


def test_limits_that_nobody_reaches_are_not_taken_for_lengths() -> None:
    engine = SimulatedEngine()
    engine.serve(Kind(20, 200, most=4096), 12, 30.0)
    assert far_off(engine.burst(Kind(1500, 8, most=4096), 30), times=2.5) == []


def test_a_cache_that_is_full_of_long_answers() -> None:
    """Where those who run still grow, and take each other's blocks, the first who come wait longer than was said."""
    engine = SimulatedEngine(seats=64, blocks=300)
    engine.serve(LONG_ANSWER, 24, 30.0)
    assert far_off(engine.burst(LONG_PROMPT, 30), times=3.0) == []


def test_what_is_said_goes_down_as_the_queue_does() -> None:
    """Half way, half of it is left."""
    engine = SimulatedEngine()
    engine.serve(LONG_ANSWER, 12, 30.0)
    came = [engine.come(LONG_PROMPT) for _ in range(30)]
    began, first = engine.now, engine.said()
    while came[14].token_at is None:
        engine.engine.step()
    half, half_way = engine.said(), engine.now
    while came[29].token_at is None:
        engine.engine.step()
    assert half < 0.7 * first
    left, whole = engine.now - half_way, engine.now - began
    assert left / 2 <= half <= 2 * left
    assert whole / 2 <= first <= 2 * whole
