"""The estimated queue in virtual time: a made-up engine of known speed, and what is said of its queue."""

from __future__ import annotations

import pytest

from octavo_engine.batch import SchedulerStats
from octavo_engine.queue_estimate import QueueEstimate


class VirtualEngine:
    """Computes prompts at `rate` tokens a second, between `decodes` steps that compute none."""

    def __init__(self) -> None:
        self.estimate, self.now = QueueEstimate(), 0.0

    def step(self, computed: int, seconds: float, *, leaves: bool = False, pause: float = 0.0) -> None:
        began = self.now + pause
        self.now = began + seconds
        self.estimate.step(began, self.now, computed, leaves_prompts=leaves)

    def seconds(self, waiting: int = 0, running: int = 0, oldest: float | None = None) -> float:
        stats = SchedulerStats(
            waiting_prompt_tokens=waiting, running_prompt_tokens=running, oldest_arrival=oldest
        )  # fmt: skip
        return self.estimate.seconds(stats, self.now)


@pytest.fixture
def engine() -> VirtualEngine:
    return VirtualEngine()


def test_idle_is_zero_at_all_times(engine: VirtualEngine) -> None:
    assert engine.seconds() == 0
    engine.step(0, 5.0)
    assert engine.seconds() == 0
    engine.step(100, 5.0)
    assert engine.seconds() == 0


def test_before_anything_is_known_it_lasts_as_long_again(engine: VirtualEngine) -> None:
    assert engine.seconds(waiting=10_000, oldest=0.0) == 0
    engine.now = 3.0
    assert engine.seconds(waiting=10_000, oldest=1.0) == 2.0
    assert engine.seconds(running=10_000) == 0


def test_prompts_ahead_over_the_rate(engine: VirtualEngine) -> None:
    engine.step(1000, 0.5)
    assert engine.seconds(waiting=6000) == pytest.approx(3.0)
    assert engine.seconds(waiting=5000, running=1000) == pytest.approx(3.0)


def test_what_the_cache_has_needs_no_computing(engine: VirtualEngine) -> None:
    for _ in range(50):
        engine.estimate.admitted(1000, 900)
        engine.step(100, 0.1)
    assert engine.seconds(waiting=10_000) == pytest.approx(1.0)
    for _ in range(200):
        engine.estimate.admitted(1000, 0)
    assert engine.seconds(waiting=10_000) == pytest.approx(10.0, rel=0.01)


def test_decodes_beside_a_waiting_prompt_count(engine: VirtualEngine) -> None:
    """One step in ten computes a prompt: the others are what the next one waits for, too."""
    for _ in range(20):
        for _ in range(9):
            engine.step(0, 0.1, leaves=True)
        engine.step(100, 0.1, leaves=True)
    assert engine.seconds(waiting=1000) == pytest.approx(10.0, rel=0.02)


def test_decodes_while_nobody_waits_do_not(engine: VirtualEngine) -> None:
    for _ in range(20):
        for _ in range(9):
            engine.step(0, 0.1)
        engine.step(100, 0.1)
    assert engine.seconds(waiting=1000) == pytest.approx(1.0)


def test_pauses_between_steps_count_while_a_prompt_waits(engine: VirtualEngine) -> None:
    for leaves in (True, False):
        engine.step(0, 0.1, leaves=leaves)
    engine.step(100, 0.1, leaves=True)
    engine.step(100, 0.1, pause=0.2)
    assert engine.seconds(waiting=200) == pytest.approx(0.4, rel=0.02)


def test_a_queue_that_stands_still_is_said_to_last(engine: VirtualEngine) -> None:
    """The cache is full: for a minute nothing but decodes. A short prompt waits no less than it has waited."""
    engine.step(1000, 1.0, leaves=True)
    said = []
    for _ in range(60):
        engine.step(0, 1.0, leaves=True)
        said.append(engine.seconds(waiting=10, oldest=0.0))
    assert said == sorted(said)
    assert said[-1] == pytest.approx(60.0)
    engine.step(10, 0.1, leaves=True)
    assert engine.seconds(waiting=10, oldest=0.0) < 10.0


def test_one_decode_step_at_the_end_of_a_queue_is_not_a_stall(engine: VirtualEngine) -> None:
    engine.step(0, 9.0, leaves=True)
    engine.step(0, 9.0, leaves=False)  # who waited has gone
    engine.step(100, 0.1, leaves=True)
    assert engine.seconds(waiting=1000) == pytest.approx(1.0)


def test_it_forgets_a_slow_past(engine: VirtualEngine) -> None:
    engine.step(100, 10.0)
    assert engine.seconds(waiting=1000) == pytest.approx(100.0)
    for _ in range(300):
        engine.step(1000, 1.0)
    assert engine.seconds(waiting=1000) == pytest.approx(1.0, rel=0.01)


def test_a_rest_keeps_the_speed_and_forgets_the_jam(engine: VirtualEngine) -> None:
    engine.step(0, 20.0, leaves=True)
    engine.step(1000, 1.0)
    assert engine.seconds(waiting=1000) == pytest.approx(21.0, rel=0.01)
    engine.step(0, 0.1, pause=600.0)
    assert engine.seconds(waiting=1000) == pytest.approx(1.0, rel=0.01)


def test_it_comes_true_for_a_steady_queue(engine: VirtualEngine) -> None:
    """Twenty prompts wait; what is said at the beginning is what it takes, within a tenth."""
    engine.step(512, 0.25, leaves=True)
    tokens, said = 20 * 512, engine.seconds(waiting=20 * 512)
    began = engine.now
    while tokens:
        engine.step(512, 0.25, leaves=tokens > 512)
        tokens -= 512
    assert said == pytest.approx(engine.now - began, rel=0.1)
