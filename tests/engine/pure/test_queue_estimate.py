"""The estimated queue in virtual time: what is said of a made-up engine's queue by its parts."""

from __future__ import annotations

from typing import Any

import pytest

from known_models import SMOLLM2_135M
from octavo_engine.batch import SchedulerStats
from octavo_engine.model.tensors.costs import cost_of
from octavo_engine.queue_estimate.answers import FIRST_GUESS, Answers, expected
from octavo_engine.queue_estimate.estimate import QueueEstimate
from octavo_engine.queue_estimate.seats import Seats
from octavo_engine.queue_estimate.speed import Expected, Speed
from octavo_engine.request import FinishReason, Request, SamplingParams, Status, WaitReason
from octavo_engine.roofline import Machine

EXPECTED = Expected(step=0.010, decode=0.001, token=0.0005)


def request(prompt: int = 100, most: int = 16, output: int = 0, cached: int = 0) -> Request:
    made = Request(id="r", tokens=[1] * prompt, params=SamplingParams(max_tokens=most), arrival=0.0)
    made.tokens += [7] * output
    made.num_cached = cached
    return made


class VirtualEngine:
    """Steps one after another, as they are told, with pauses between them."""

    def __init__(self) -> None:
        self.estimate, self.now = QueueEstimate(), 0.0

    def step(
        self, computed: int, seconds: float, *, decodes: int = 0, leaves: bool = False, pause: float = 0.0
    ) -> None:
        began = self.now + pause
        self.now = began + seconds
        self.estimate.step(began, self.now, decodes=decodes, computed=computed, leaves_prompts=leaves)

    def ended(self, *, most: int, output: int, reason: FinishReason = FinishReason.LENGTH) -> None:
        made = request(most=most, output=output)
        self.estimate.admitted(made)
        made.status, made.finish_reason = Status.FINISHED, reason
        self.estimate.finished(made)

    def seconds(self, waiting: int = 0, running: int = 0, oldest: float | None = None, **rest: Any) -> float:
        known = {"step_tokens": 1 << 30} | rest
        stats = SchedulerStats(
            waiting_prompt_tokens=waiting, running_prompt_tokens=running, oldest_arrival=oldest, **known
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


@pytest.mark.parametrize("accepted", [0, 3, 12])
def test_answers_of_which_guesses_come_true_keep_their_seats_for_fewer_steps(
    engine: VirtualEngine, accepted: int
) -> None:
    running = [request(most=1000) for _ in range(4)]
    for each in running:
        engine.estimate.admitted(each)
    for _ in range(300):
        engine.step(0, 0.010, decodes=4)
        for _ in range(accepted):
            engine.estimate.accepted()
    full = {"running": 4, "seats": 4, "waiting_answer_tokens": 1000, "waiting": {WaitReason.BATCH_FULL: 1}}
    stats = SchedulerStats(waiting_prompt_tokens=10, step_tokens=1 << 30, **full)  # type: ignore[arg-type]
    alone = QueueEstimate()
    for each in running:
        alone.admitted(each)
    for _ in range(300):
        alone.step(0.0, 0.010, decodes=4, computed=0, leaves_prompts=False)
    said, without = (estimate._foreseen(stats, 10) for estimate in (engine.estimate, alone))
    assert said == pytest.approx(without / (1 + accepted / 4), rel=0.01)


def test_before_the_first_step_the_roofline_speaks(engine: VirtualEngine) -> None:
    engine.estimate.expect(EXPECTED)
    assert engine.seconds(waiting=10_000, step_tokens=1000) == pytest.approx(10_000 * 0.0005 + 10 * 0.010)


def test_prompts_ahead_over_the_rate(engine: VirtualEngine) -> None:
    engine.step(1000, 0.5)
    assert engine.seconds(waiting=6000) == pytest.approx(3.0)
    assert engine.seconds(waiting=5000, running=1000) == pytest.approx(3.0)


def test_what_the_cache_has_needs_no_computing(engine: VirtualEngine) -> None:
    for _ in range(50):
        engine.estimate.admitted(request(1000, cached=900))
        engine.step(100, 0.1)
    assert engine.seconds(waiting=10_000) == pytest.approx(1.0)
    for _ in range(200):
        engine.estimate.admitted(request(1000))
    assert engine.seconds(waiting=10_000) == pytest.approx(10.0, rel=0.01)


def test_pauses_between_steps_count_while_a_prompt_waits(engine: VirtualEngine) -> None:
    for _ in range(5):
        engine.step(100, 0.1, leaves=True, pause=0.1)
    engine.step(100, 0.1, pause=0.1)
    slow = engine.seconds(waiting=1000)
    assert slow == pytest.approx(2.0, rel=0.1)
    for _ in range(5):
        engine.step(100, 0.1, pause=600.0)
    assert engine.seconds(waiting=1000) < slow


def test_a_step_that_does_not_end_is_said_to_last(engine: VirtualEngine) -> None:
    """As long again as it has lasted; but an engine that only had nothing to do is none that hangs."""
    engine.step(1000, 1.0)
    engine.now += 60.0
    assert engine.seconds(waiting=10, oldest=engine.now - 50.0) == pytest.approx(50.0)
    assert engine.seconds(waiting=10, oldest=engine.now) < 1.0


def test_it_forgets_a_slow_past(engine: VirtualEngine) -> None:
    engine.step(100, 10.0)
    assert engine.seconds(waiting=1000) == pytest.approx(100.0)
    for _ in range(300):
        engine.step(1000, 1.0)
    assert engine.seconds(waiting=1000) == pytest.approx(1.0, rel=0.01)


def test_who_waits_for_a_seat_waits_for_answers_to_end(engine: VirtualEngine) -> None:
    """Four seats are taken by answers that have 100 tokens to come, in steps of 0.1 s: of which a quarter, for one."""
    engine.step(100, 0.1)
    for _ in range(100):
        engine.step(0, 0.1, decodes=4)
    for _ in range(4):
        engine.estimate.admitted(request(most=200, output=100))
    one = SchedulerStats(waiting={WaitReason.BATCH_FULL: 1}, waiting_prompt_tokens=10, waiting_answer_tokens=200,
                         running=4, seats=4, step_tokens=512)  # fmt: skip
    assert engine.estimate.seconds(one, engine.now) == pytest.approx(0.1 * 100 / 2, rel=0.25)


def test_those_who_have_ended_hold_no_seat(engine: VirtualEngine) -> None:
    engine.ended(most=10_000, output=5)
    gone = request(most=10_000)
    gone.status = Status.FINISHED  # between the plan and its report
    engine.estimate.admitted(gone)
    assert not engine.estimate._running


class TestSpeed:
    """Steps without prompt tokens, and what these add."""

    def test_short_prompts_say_nothing_against_long_ones(self) -> None:
        """A step of 20 prompt tokens takes what a step takes: 25 times what they would take among many."""
        speed = Speed()
        for _ in range(50):
            speed.observe(0.012, decodes=4, tokens=0)
            speed.observe(0.5, decodes=4, tokens=1000)
        for _ in range(300):
            speed.observe(0.022, decodes=4, tokens=20)
        assert speed.seconds(10, decodes=4, tokens=10_000) == pytest.approx(5.0, rel=0.2)

    def test_where_only_short_ones_were_seen_the_roofline_still_speaks(self) -> None:
        speed = Speed()
        speed.expect(EXPECTED)
        for _ in range(1000):
            speed.observe(0.010, decodes=0, tokens=20)
        assert 0.2 * 5.0 < speed.seconds(0, decodes=0, tokens=10_000) < 5.0

    def test_what_many_decodes_take_is_told_before_they_were_seen(self) -> None:
        speed = Speed()
        speed.expect(EXPECTED)
        for _ in range(200):
            speed.observe(0.031, decodes=1, tokens=0)  # 20 ms beside what was expected
        assert speed.seconds(1, decodes=1, tokens=0) == pytest.approx(0.031, rel=0.01)
        assert speed.seconds(1, decodes=41, tokens=0) == pytest.approx(0.071, rel=0.01)

    def test_one_step_that_hangs_is_no_pace(self) -> None:
        speed = Speed()
        for _ in range(50):
            speed.observe(0.010, decodes=1, tokens=0)
        speed.observe(20.0, decodes=1, tokens=0)
        assert speed.seconds(1, decodes=1, tokens=0) < 0.012

    def test_a_step_of_no_time_is_no_step(self) -> None:
        speed = Speed()
        speed.observe(0.0, decodes=1, tokens=10)
        assert not speed.known

    def test_the_roofline_is_looked_at_for_a_few_and_for_many(self) -> None:
        cost, machine = cost_of(SMOLLM2_135M, 2), Machine(name="m", bandwidth=48e9, flops=600e9)
        of = Expected.of(cost, machine)
        one, many = (cost.decode([512] * number).least_seconds(machine) for number in (1, 64))
        assert of.step + of.decode == pytest.approx(2 * one)
        assert of.step + 64 * of.decode == pytest.approx(2 * many)
        assert of.token == pytest.approx(2 * cost.step([(0, 512)], 1).flops / 600e9 / 512)


class TestAnswers:
    """How long they get."""

    def test_a_limit_that_answers_reach_is_what_they_get(self) -> None:
        answers = Answers()
        for _ in range(100):
            answers.ended(100, stopped=False)
        assert expected(answers.chance([]), 100) == pytest.approx(100, rel=0.2)
        assert expected(answers.chance([]), 20) == pytest.approx(20, rel=0.05)

    def test_a_limit_far_away_is_not(self) -> None:
        answers = Answers()
        for _ in range(200):
            answers.ended(50, stopped=True)
        assert expected(answers.chance([]), 8192) < 300

    def test_those_that_run_on_count_before_they_end(self) -> None:
        answers = Answers()
        for _ in range(100):
            answers.ended(10, stopped=True)
        before = expected(answers.chance([]), 8192)
        assert expected(answers.chance([500] * 8), 8192) > 1.5 * before

    def test_at_first_it_is_a_guess(self) -> None:
        assert expected(Answers().chance([]), 1e9) == pytest.approx(FIRST_GUESS)
        assert expected(Answers().chance([]), 0) == 0


class TestSeats:
    """How many there are, and when they come free."""

    def test_free_ones_are_taken_at_once(self) -> None:
        assert Seats(waiting=3, free=4, taken=4).steps(100, 100) == 0

    @pytest.mark.parametrize(
        ("waiting", "left", "answer", "steps"),
        [
            (1, 100, 100, 25),  # the first of eight that leave within 200 steps
            (8, 100, 1000, 200),  # all of them
            (16, 100, 200, 400),  # and those that follow
            (9, 1, 100, 100),  # all leave at once, and one of those that follow
        ],
    )
    def test_they_come_free_as_answers_end(self, waiting: int, left: float, answer: float, steps: float) -> None:
        assert Seats(waiting=waiting, free=0, taken=8).steps(left, answer) == pytest.approx(steps, rel=0.4)

    def test_short_answers_come_and_go_on_the_first_seat_that_is_free(self) -> None:
        """Eight long ones hold all seats: twenty short ones need not wait until these have gone."""
        seats = Seats(waiting=20, free=0, taken=8)
        assert seats.steps(500, 4) < 0.5 * seats.steps(500, 500)

    def test_the_cache_bounds_them_too(self) -> None:
        stats = SchedulerStats(
            waiting={WaitReason.NEW: 10}, waiting_prompt_tokens=10_000, seats=64, free_blocks=100, used_blocks=100,
            running=2, block_size=16,
        )  # fmt: skip
        seats = Seats.of(stats, left=0, answer=0)  # of 62.5 blocks each
        assert seats.waiting == 10
        assert seats.all == pytest.approx(3.2)
        assert seats.free == pytest.approx(98 / 62.5)
        blocked = Seats.of(SchedulerStats(waiting={WaitReason.KV_FULL: 1}, waiting_prompt_tokens=16, seats=64,
                                          running=1, free_blocks=9, blocked=WaitReason.KV_FULL), 0, 0)  # fmt: skip
        assert blocked.free == 0
