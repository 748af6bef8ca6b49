"""What steps took, beside what they could take at least; and who limits them."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from known_models import SMOLLM2_135M
from octavo_engine.batch import Batch, SchedulerStats, Slice
from octavo_engine.metrics import Metrics
from octavo_engine.model.tensors.costs import cost_of
from octavo_engine.request import Request, SamplingParams
from octavo_engine.roofline import Bound, Machine
from octavo_engine.roofline_share import RooflineShare, limiter

COST = cost_of(SMOLLM2_135M, 2)
MACHINE = Machine(name="two cores", bandwidth=48e9, flops=600e9)


def piece(start: int, count: int, *, prompt: int = 100, samples: bool = True) -> Slice:
    request = Request(id="r", tokens=[1] * prompt, params=SamplingParams(), arrival=0.0)
    return Slice(request, start, count, samples)


def decoding(*contexts: int, at: float = 0.0) -> Batch:
    return Batch(slices=tuple(piece(context - 1, 1) for context in contexts), at=at)


def known() -> RooflineShare:
    share = RooflineShare(["prefill", "decode", "mixed"])
    share.know(COST, MACHINE)
    return share


def test_a_decode_at_the_memorys_speed_reaches_its_bound():
    share = known()
    work = COST.decode([200, 300])
    share.step("decode", decoding(200, 300), work.bytes / 48e9)
    assert share.shares(0.0)["decode", "memory"] == pytest.approx(1.0)
    assert share.shares(0.0)["decode", "compute"] == pytest.approx(work.intensity / MACHINE.ridge)


def test_a_prompt_that_takes_twice_the_least_reaches_half():
    share = known()
    work = COST.step([(0, 64), (64, 100)], 1)
    batch = Batch(slices=(piece(0, 64, samples=False), piece(64, 36)))
    share.step("prefill", batch, 2 * work.flops / 600e9)
    assert share.shares(0.0)["prefill", "compute"] == pytest.approx(0.5)
    assert share.shares(0.0)["decode", "memory"] == 0.0


def test_recent_steps_weigh_most():
    share, least = known(), COST.decode([200]).bytes / 48e9
    for _ in range(2000):
        share.step("decode", decoding(200), 10 * least)
    for _ in range(20_000):
        share.step("decode", decoding(200), least)
    assert share.shares(0.0)["decode", "memory"] > 0.9


def test_a_step_that_beats_the_machine_shows_what_the_machine_can_do():
    share = known()
    least = COST.decode([200]).bytes / 48e9
    share.step("decode", decoding(200), least / 2)
    assert share.shares(0.0)["decode", "memory"] == pytest.approx(1.0)
    share = known()
    share.step("prefill", Batch(slices=(piece(0, 100),)), 1e-6)  # it moves the machine's figures, not the past
    share.step("decode", decoding(200), least)
    assert share.shares(0.0)["decode", "memory"] < 0.01
    assert max(share.shares(0.0).values()) <= 1.0


def test_a_step_of_no_time_is_no_step():
    share = known()
    share.step("decode", decoding(200), 0.0)
    assert share.shares(0.0)["decode", "memory"] == 0.0


def test_an_idle_engine_reaches_nothing():
    """Of a load that is over, the last figures would be taken for the present: each kind of step has its own end."""
    share, least = known(), COST.decode([200]).bytes / 48e9
    share.step("prefill", Batch(slices=(piece(0, 100),), at=100.0), 0.5)
    share.step("decode", decoding(200, at=120.0), least)
    assert share.shares(130.0)["decode", "memory"] == pytest.approx(1.0)
    assert share.shares(130.0)["prefill", "compute"] > 0.0
    assert share.shares(131.0)["decode", "memory"] == pytest.approx(1.0)
    assert share.shares(131.0)["prefill", "compute"] == share.shares(131.0)["prefill", "memory"] == 0.0
    assert set(share.shares(151.0).values()) == {0.0}


def test_after_a_rest_only_new_steps_count():
    share, least = known(), COST.decode([200]).bytes / 48e9
    for number in range(100):
        share.step("decode", decoding(200, at=number * 10 * least), 10 * least)
    assert share.shares(1.0)["decode", "memory"] == pytest.approx(0.1)
    share.step("decode", decoding(200, at=500.0), least)
    assert share.shares(500.0)["decode", "memory"] == pytest.approx(1.0)


def test_nothing_is_claimed_of_an_unknown_machine_or_before_a_step():
    share = RooflineShare(["decode"])
    share.step("decode", decoding(200), 0.001)
    assert set(share.shares(0.0).values()) == {0.0}
    share.know(COST, MACHINE)
    assert share.shares(0.0) == {("decode", "memory"): 0.0, ("decode", "compute"): 0.0}


@pytest.mark.parametrize(
    ("memory", "compute", "word"),
    [(0.8, 0.1, "memory"), (0.2, 0.7, "compute"), (0.5, 0.5, "memory"), (0.4, 0.1, "overhead"), (0.0, 0.0, "overhead")],
)
def test_the_limiter_is_the_bound_that_is_nearly_reached(memory, compute, word):
    assert limiter({Bound.MEMORY: memory, Bound.COMPUTE: compute}) == word


def test_the_engines_metrics_have_every_phase_and_bound():
    registry = CollectorRegistry()
    now = [0.0]
    metrics = Metrics(registry, model_name="m", stats=SchedulerStats, clock=lambda: now[0])

    def value(phase: str, bound: str) -> float | None:
        labels = {"model_name": "m", "phase": phase, "bound": bound}
        return registry.get_sample_value("octavo_roofline_ratio", labels)

    assert {value(p, b) for p in ("prefill", "decode", "mixed") for b in ("memory", "compute")} == {0.0}
    metrics.know(COST, MACHINE)
    metrics.step(decoding(101, 140), 0.010)
    assert value("decode", "memory") == pytest.approx(COST.decode([101, 140]).bytes / 48e9 / 0.010)
    metrics.step(Batch(slices=(piece(0, 50, samples=False), piece(100, 1))), 0.050)
    mixed = COST.step([(0, 50), (100, 101)], 1)
    assert value("mixed", "compute") == pytest.approx(mixed.flops / 600e9 / 0.050)
    now[0] = 100.0
    assert {value(p, b) for p in ("prefill", "decode", "mixed") for b in ("memory", "compute")} == {0.0}
