"""How much of a prompt a step may compute beside decodes, and how that is learned, in made-up seconds."""

from __future__ import annotations

import random
from statistics import median, quantiles

import pytest

from octavo_engine.batch import Batch, Slice
from octavo_engine.scheduling.pace import MARGIN, MIN_PROMPT_TOKENS, MIN_TELLING_TOKENS, STALE_STEPS, Least, Pace, Pacer
from scheduling_helpers import request, run, scheduler, shape, step


class TestPace:
    def test_one_prompt_makes_a_step_as_much_longer_as_the_slowdown_says(self):
        assert Pace(equal_tokens=100, slowdown=1.5).prompt_tokens(prompts=1) == 50
        assert Pace(equal_tokens=100, slowdown=3).prompt_tokens(prompts=1) == 200

    @pytest.mark.parametrize(("prompts", "tokens"), [(2, 200), (3, 450), (10, 5000)])
    def test_many_prompts_get_more_than_one(self, prompts: int, tokens: int):
        assert Pace(equal_tokens=100, slowdown=1.5).prompt_tokens(prompts) == tokens

    def test_however_many_wait_a_step_has_no_more_than_the_most(self):
        pace = Pace(equal_tokens=100, slowdown=1.5, most_tokens=300)
        assert [pace.prompt_tokens(prompts) for prompts in (1, 2, 3, 100)] == [50, 200, 300, 300]

    def test_a_guess_must_come_true_as_often_as_it_costs_what_it_saves(self):
        assert Pace(equal_tokens=10, slowdown=2, equal_drafted=20).price(decodes=5) == pytest.approx(MARGIN * 0.25)
        assert Pace(equal_tokens=10, slowdown=2).price(decodes=5) == 0

    def test_guesses_have_what_prompts_leave_of_the_slowdown(self):
        pace = Pace(equal_tokens=100, slowdown=1.5, equal_drafted=200)
        assert [pace.drafted_tokens(tokens) for tokens in (0, 25, 50, 70)] == [100, 50, 0, 0]
        assert Pace(equal_tokens=0, slowdown=1).drafted_tokens(0) == 0

    def test_a_prompt_always_gets_on(self):
        assert Pace(equal_tokens=0.5, slowdown=1).prompt_tokens(1) == MIN_PROMPT_TOKENS > 0


class Machine:
    """One whose steps take what their decodes and prompt tokens cost, give or take `noise`."""

    def __init__(self, decode_seconds: float, token_seconds: float, noise: float = 0.0) -> None:
        self.decode_seconds, self.token_seconds, self.noise = decode_seconds, token_seconds, noise
        self._draw = random.Random(3)

    def step(self, pacer: Pacer, decodes: int, tokens: int, drafted: int = 0, drafted_seconds: float = 0.0) -> float:
        """Let the pacer see one step; returns how long it took. `drafted`: guesses of each decode."""
        seconds = self.decode_seconds * bool(decodes) + self.token_seconds * tokens
        seconds += drafted_seconds * drafted * decodes
        seconds *= 1 + self._draw.uniform(-self.noise, self.noise)
        draft = (7,) * drafted
        singles = [Slice(request(9), 9, 1 + drafted, samples=True, draft=draft) for _ in range(decodes)]
        chunk = [Slice(request(max(2, tokens)), 0, tokens, samples=False)] if tokens else []
        pacer.observe(Batch(slices=(*singles, *chunk)), seconds)
        return seconds


def equal_tokens(pacer: Pacer) -> float:
    assert pacer.pace is not None
    return pacer.pace.equal_tokens


class TestPacerOfDrafts:
    def seen(self, drafted_seconds: float, steps: int = 400) -> Pace:
        """What is known after steps with drafts of all lengths, a tenth of them with none."""
        pacer, machine = Pacer(1.5), Machine(0.01, 0.0004, noise=0.1)
        machine.step(pacer, 0, 200)
        machine.step(pacer, 4, 0)
        for number in range(steps):
            machine.step(pacer, 4, 0, drafted=number % 10, drafted_seconds=drafted_seconds)
        assert pacer.pace is not None
        return pacer.pace

    def test_a_guess_is_thought_to_cost_what_a_prompt_token_does(self):
        pace = self.seen(0.0, steps=0)
        assert pace.equal_drafted == pace.equal_tokens

    def test_what_it_costs_is_learned(self):
        pace = self.seen(0.0001)
        assert pace.equal_drafted == pytest.approx(100, rel=0.25)
        assert pace.equal_tokens == pytest.approx(25, rel=0.2), "decodes and prompts cost what they did"

    def test_it_never_costs_nothing_nor_more_than_a_prompt_token(self):
        assert self.seen(0.0).equal_drafted <= 10 * 25 * 1.2
        assert self.seen(0.002).equal_drafted >= 25 * 0.7


class TestTheLongestStep:
    def test_it_is_as_many_tokens_as_were_seen_to_take_so_long(self):
        pacer, machine = Pacer(1.5, longest=0.1), Machine(0.01, 0.0004)
        machine.step(pacer, 0, 100)
        machine.step(pacer, 4, 0)
        assert pacer.pace is not None
        assert pacer.pace.most_tokens == 250

    def test_a_slow_machine_computes_as_many_as_make_a_step_worth_while(self):
        pacer, machine = Pacer(1.5, longest=0.1), Machine(0.5, 0.1)
        machine.step(pacer, 0, 100)
        machine.step(pacer, 4, 0)
        assert pacer.pace is not None
        assert pacer.pace.most_tokens == MIN_TELLING_TOKENS

    def test_what_the_machine_does_at_best_stands_in_until_steps_were_seen(self):
        pacer, machine = Pacer(1.5, longest=0.1, least=Least(decodes=0.02, token=0.0002)), Machine(0.01, 0.0004)
        assert pacer.pace == Pace(100.0, 1.5, 100.0, most_tokens=500)
        machine.step(pacer, 4, 0)
        assert pacer.pace == Pace(pytest.approx(50.0), 1.5, pytest.approx(50.0), most_tokens=500)
        machine.step(pacer, 0, 100)
        assert pacer.pace == Pace(pytest.approx(25.0), 1.5, pytest.approx(25.0), most_tokens=250)


class TestPacer:
    def test_there_is_no_limit_before_a_decode_and_a_prompt_were_seen(self):
        pacer, machine = Pacer(1.5), Machine(0.01, 0.0004)
        assert pacer.pace is None
        machine.step(pacer, 0, 100)
        assert pacer.pace is None
        machine.step(pacer, 4, 0)
        assert equal_tokens(pacer) == pytest.approx(25)
        assert pacer.pace is not None
        assert pacer.pace.slowdown == 1.5

    def test_it_keeps_steps_near_the_slowdown_on_a_noisy_machine(self):
        pacer, machine = Pacer(1.5), Machine(0.01, 0.0004, noise=0.15)
        machine.step(pacer, 0, 200)
        machine.step(pacer, 8, 0)
        seconds = []
        for _ in range(300):
            assert pacer.pace is not None
            seconds.append(machine.step(pacer, 8, pacer.pace.prompt_tokens(1)))
        assert sum(seconds) / len(seconds) == pytest.approx(0.015, rel=0.1)
        assert max(seconds) < 0.02

    @pytest.mark.parametrize("factor", [0.2, 5.0])
    def test_it_follows_a_prompt_token_that_comes_to_cost_more_or_less(self, factor: float):
        pacer, machine = Pacer(1.5), Machine(0.01, 0.0004)
        machine.step(pacer, 0, 200)
        machine.step(pacer, 8, 0)
        machine.token_seconds *= factor
        for number in range(200):  # a decode alone now and then
            assert pacer.pace is not None
            machine.step(pacer, 8, 0 if number % 4 == 0 else pacer.pace.prompt_tokens(1))
        assert equal_tokens(pacer) == pytest.approx(25 / factor, rel=0.25)

    def test_it_follows_decodes_that_come_to_cost_more(self):
        pacer, machine = Pacer(1.5), Machine(0.01, 0.0004)
        machine.step(pacer, 0, 200)
        machine.step(pacer, 8, 0)
        machine.decode_seconds = 0.03
        for _ in range(30):
            machine.step(pacer, 8, 0)
        assert equal_tokens(pacer) == pytest.approx(75, rel=0.05)

    def test_what_a_step_took_too_much_is_its_prompts_fault_where_decodes_were_just_seen(self):
        pacer, machine = Pacer(1.5), Machine(0.01, 0.0004)
        machine.step(pacer, 0, 200)
        machine.step(pacer, 8, 0)
        for _ in range(STALE_STEPS):
            machine.step(pacer, 8, 100)
        machine.step(pacer, 8, 0)
        decodes, tokens = pacer._decode_seconds, pacer._token_seconds
        machine.token_seconds = 0.0008
        machine.step(pacer, 8, 100)
        assert pacer._decode_seconds == pytest.approx(decodes, rel=0.01)
        assert pacer._token_seconds > 1.1 * tokens

    def test_one_step_that_hangs_changes_little(self):
        pacer, machine = Pacer(1.5), Machine(0.01, 0.0004)
        machine.step(pacer, 0, 200)
        machine.step(pacer, 8, 0)
        before = equal_tokens(pacer)
        machine.decode_seconds = 60.0
        machine.step(pacer, 8, 0)
        assert equal_tokens(pacer) <= 1.2 * before + 1e-9

    def test_a_short_prompt_alone_teaches_nothing(self):
        pacer, machine = Pacer(1.5), Machine(0.01, 0.0004)
        machine.step(pacer, 4, 0)
        pacer.observe(Batch(slices=(Slice(request(9), 0, 2, samples=True),)), 0.01)  # as long as a decode
        assert pacer.pace is None
        machine.step(pacer, 0, 200)
        before = equal_tokens(pacer)
        pacer.observe(Batch(slices=(Slice(request(9), 0, 2, samples=True),)), 0.01)
        assert equal_tokens(pacer) == before

    def test_a_clock_that_stands_still_teaches_nothing(self):
        pacer = Pacer(1.5)
        pacer.observe(Batch(slices=(Slice(request(9), 9, 1, samples=True),)), 0.0)
        assert pacer.pace is None


class TestWithTheScheduler:
    PACE = Pace(equal_tokens=64.0, slowdown=1.5)

    def test_a_prompt_beside_decodes_gets_the_pace_and_alone_the_budget(self):
        made, short, long = scheduler(budget=100, blocks=200), request(3, max_tokens=3), request(300)
        made.add(short)
        step(made)
        made.add(long)
        assert shape(made.schedule(0.0, self.PACE)) == [(short.id, 3, 1), (long.id, 0, 32)]

    def test_without_decodes_one_prompt_has_the_budget_and_several_the_most(self):
        made, long, behind = scheduler(budget=100, blocks=200), request(300), request(9)
        pace = Pace(64.0, 1.5, most_tokens=70)
        made.add(long)
        first = made.schedule(0.0, pace)
        assert shape(first) == [(long.id, 0, 100)]
        made.computed(first)
        made.add(behind)
        assert shape(made.schedule(0.0, pace)) == [(long.id, 100, 70)]
        assert made.stats().step_tokens == 70

    def test_prompts_that_wait_for_blocks_do_not_count(self):
        made = scheduler(budget=100, blocks=90, seqs=20)
        short, long, big = request(3, max_tokens=30), request(200), [request(250) for _ in range(9)]
        made.add(short)
        step(made)
        for item in (long, *big):
            made.add(item)
        first = made.schedule(0.0, self.PACE)
        assert first.num_tokens == 1 + 99  # ten prompts, so the budget
        made.computed(first)
        short.tokens.append(7)
        assert made.schedule(0.0, self.PACE).num_tokens == 1 + 32

    def test_without_chunking_a_prompt_is_computed_whole(self):
        made, short, long = scheduler(budget=300, blocks=200, chunked=False), request(3, max_tokens=3), request(200)
        made.add(short)
        step(made)
        made.add(long)
        assert shape(made.schedule(0.0, self.PACE)) == [(short.id, 3, 1), (long.id, 0, 200)]


def gaps_beside_a_long_prompt(pacer: Pacer | None, noise: float = 0.1) -> tuple[list[float], list[float], int]:
    """Eight answers and a prompt of 4,000 tokens, on a machine whose prompt tokens cost twice as much at its end.

    The steps before it came and while it was computed, in seconds, and how many the latter were.
    """
    draw, made = random.Random(5), scheduler(budget=2048, blocks=4000, seqs=16)
    for _ in range(8):
        made.add(request(64, max_tokens=2000))
    long, steps, before = request(4000, max_tokens=1), list[float](), 0
    while long.num_output == 0:
        if len(steps) == 60:
            made.add(long)
            before = len(steps)
        batch = made.schedule(0.0, pacer.pace if pacer else None)
        prompt = [piece for piece in batch.slices if piece.count > 1]
        seconds = 0.008 + sum(piece.count * 0.0004 * (1 + piece.start / 4000) for piece in prompt)
        steps.append(seconds * (1 + draw.uniform(-noise, noise)))
        if pacer:
            pacer.observe(batch, steps[-1])
        run(made, batch)
    return steps[1:before], steps[before:], len(steps) - before


def test_a_long_prompt_does_not_stall_the_answers_beside_it():
    before, while_, _ = gaps_beside_a_long_prompt(Pacer(1.75))
    undisturbed = median(before)
    assert quantiles(before + while_, n=100)[98] < 2 * undisturbed
    assert max(while_) < 2.5 * undisturbed
    alone = 4000 * 0.0006
    assert sum(while_) < 1.1 * alone * 1.75 / 0.75  # it has the share of the time that the slowdown leaves it


def test_without_a_pace_it_does():
    before, while_, count = gaps_beside_a_long_prompt(None)
    assert count <= 3
    assert max(while_) > 50 * median(before)


def first_tokens_of_a_burst(pacer: Pacer) -> tuple[list[float], float]:
    """Thirty-two prompts at once, on a slow machine: when each had its first token, and the longest step, in
    seconds."""
    made, burst = scheduler(budget=2048, blocks=2000, seqs=64), [request(128) for _ in range(32)]
    now = longest = 0.0
    firsts: dict[str, float] = {}
    for item in burst:
        made.add(item)
    while len(firsts) < len(burst):
        batch = made.schedule(now, pacer.pace)
        tokens = batch.num_tokens - batch.num_continuing
        seconds = (0.01 + 0.002 * batch.num_continuing if batch.num_continuing else 0.0) + 0.002 * tokens
        now, longest = now + seconds, max(longest, seconds)
        pacer.observe(batch, seconds)
        run(made, batch)
        for item in burst:
            if item.num_output:
                firsts.setdefault(item.id, now)
    return list(firsts.values()), longest


def test_a_burst_has_its_first_tokens_one_after_the_other_and_the_last_hardly_later():
    least = Least(0.01, 0.001)  # half of what it takes
    together, long = first_tokens_of_a_burst(Pacer(1.75, least=least))
    apart, short = first_tokens_of_a_burst(Pacer(1.75, longest=0.5, least=least))
    assert long > 4.0
    assert short < 1.2, "the first step is by what the machine does at best, the others by what it does"
    assert min(apart) < 0.3 * min(together)
    assert sum(apart) < 0.9 * sum(together)
    assert max(apart) < 1.2 * max(together)
