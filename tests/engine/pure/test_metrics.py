"""What each metric counts and when, told on real requests and steps."""

from __future__ import annotations

import math

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from octavo_engine.batch import Batch, SchedulerStats, Slice
from octavo_engine.instruments import Instruments
from octavo_engine.metrics import Metrics
from octavo_engine.request import (
    EventKind,
    FinishReason,
    PreemptReason,
    RejectReason,
    Request,
    SamplingParams,
    Status,
    WaitReason,
)


class Bench:
    """A Metrics on a registry of its own, whose clock and scheduler are plain attributes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.stats = SchedulerStats()
        self.now = 0.0
        self.metrics = Metrics(self.registry, model_name="m", stats=lambda: self.stats, clock=lambda: self.now)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"model_name": "m", **labels})

    def series(self) -> set[tuple[object, ...]]:
        return {
            (sample.name, *sorted(sample.labels.items()))
            for family in self.registry.collect()
            for sample in family.samples
        }


@pytest.fixture
def bench() -> Bench:
    return Bench()


def request(prompt: int = 100, arrival: float = 0.0, id: str = "r", cached: int = 0) -> Request:
    made = Request(id=id, tokens=[1] * prompt, params=SamplingParams(), arrival=arrival)
    made.num_cached = made.num_computed = cached
    return made


def admit(made: Request, at: float) -> None:
    made.status = Status.RUNNING
    made.note(at, EventKind.ADMITTED)


def generate(bench: Bench, made: Request, at: float) -> None:
    made.tokens.append(7)
    if made.num_output == 1:
        made.note(at, EventKind.FIRST_TOKEN)
    bench.metrics.token(made, at)


def finish(bench: Bench, made: Request, at: float, reason: FinishReason = FinishReason.STOP) -> None:
    made.status, made.finish_reason = Status.FINISHED, reason
    made.note(at, EventKind.FINISHED, reason)
    bench.metrics.finished(made, at)


def whole(made: Request, start: int | None = None) -> Slice:
    start = made.num_computed if start is None else start
    return Slice(made, start, made.num_tokens - start, samples=True)


def test_one_answer_from_receipt_to_end(bench: Bench) -> None:
    made = request(prompt=100, arrival=10.0)
    admit(made, 12.0)
    bench.metrics.step(Batch(slices=(whole(made),), admitted=(made,)), 0.5)
    for at in (12.5, 12.6, 12.8):
        generate(bench, made, at)
    finish(bench, made, 12.9)

    assert bench.value("octavo_request_queue_seconds_sum") == pytest.approx(2.0)
    assert bench.value("octavo_time_to_first_token_seconds_sum") == pytest.approx(2.5)
    assert bench.value("octavo_request_prefill_seconds_sum") == pytest.approx(0.5)
    assert bench.value("octavo_inter_token_latency_seconds_count") == 2
    assert bench.value("octavo_inter_token_latency_seconds_sum") == pytest.approx(0.3)
    assert bench.value("octavo_request_decode_seconds_sum") == pytest.approx(0.3)
    assert bench.value("octavo_request_end_to_end_seconds_sum") == pytest.approx(2.9)
    assert bench.value("octavo_generation_tokens_total") == 3
    assert bench.value("octavo_request_generation_tokens_sum") == 3
    assert bench.value("octavo_request_prompt_tokens_sum") == 100
    assert bench.value("octavo_requests_total", finish_reason="stop") == 1
    assert bench.value("octavo_step_seconds_sum", kind="prefill") == pytest.approx(0.5)
    assert bench.value("octavo_step_tokens_sum") == 100


def test_prompt_tokens_are_told_apart_by_source(bench: Bench) -> None:
    made = request(prompt=100, cached=32)
    admit(made, 1.0)
    bench.metrics.step(Batch(slices=(Slice(made, 32, 40, samples=False),), admitted=(made,)), 0.1)
    made.num_computed = 72
    bench.metrics.step(Batch(slices=(whole(made),)), 0.1)

    assert bench.value("octavo_prompt_tokens_total", source="cached") == 32
    assert bench.value("octavo_prompt_tokens_total", source="computed") == 68
    assert bench.value("octavo_prompt_tokens_total", source="recomputed") == 0
    assert bench.value("octavo_prefix_cache_tokens_total", result="hit") == 32
    assert bench.value("octavo_prefix_cache_tokens_total", result="miss") == 68


def test_a_decode_adds_no_prompt_tokens(bench: Bench) -> None:
    made = request(prompt=10)
    made.tokens.append(7)
    bench.metrics.step(Batch(slices=(Slice(made, 10, 1, samples=True),)), 0.01)
    assert [bench.value("octavo_prompt_tokens_total", source=source) for source in ("computed", "recomputed")] == [0, 0]
    assert bench.value("octavo_step_seconds_count", kind="decode") == 1


def preempt(made: Request) -> Batch:
    """What the scheduler does to a victim."""
    made.num_lost = max(made.num_lost, made.num_computed)
    made.num_recompute, made.num_computed = made.num_computed, 0
    made.status = Status.WAITING
    made.num_preemptions += 1
    return Batch(preempted=((made, PreemptReason.KV_FULL),))


def test_what_a_preempted_request_computes_again_is_counted_as_that(bench: Bench) -> None:
    made = request(prompt=100)
    admit(made, 1.0)
    bench.metrics.step(Batch(slices=(whole(made),), admitted=(made,)), 0.1)
    generate(bench, made, 1.1)
    made.num_computed = 100
    bench.metrics.step(preempt(made), 0.1)

    # It resumes in two chunks, and 16 of its tokens are still in the prefix cache.
    admit(made, 2.0)
    bench.metrics.step(Batch(slices=(Slice(made, 16, 50, samples=False),), admitted=(made,)), 0.1)
    bench.metrics.step(Batch(slices=(Slice(made, 66, 35, samples=True),)), 0.1)

    assert bench.value("octavo_prompt_tokens_total", source="computed") == 100
    assert bench.value("octavo_prompt_tokens_total", source="recomputed") == 84
    assert bench.value("octavo_preemptions_total", reason="kv_full") == 1
    # Admission is counted once, although it was admitted twice.
    assert bench.value("octavo_request_queue_seconds_count") == 1
    assert bench.value("octavo_prefix_cache_tokens_total", result="miss") == 100


def test_a_second_preemption_before_it_caught_up_forgets_nothing(bench: Bench) -> None:
    made = request(prompt=100)
    made.num_computed = 90
    bench.metrics.step(preempt(made), 0.1)
    made.num_computed = 20  # of the 90 only 20 were computed again
    bench.metrics.step(preempt(made), 0.1)
    bench.metrics.step(Batch(slices=(whole(made, 0),)), 0.1)
    assert bench.value("octavo_prompt_tokens_total", source="recomputed") == 90
    assert bench.value("octavo_prompt_tokens_total", source="computed") == 10


def test_what_is_readmitted_before_its_preemption_is_told_counts_in_full(bench: Bench) -> None:
    """Where steps overlap, the next one is decided before a step is told: what it found in the prefix cache is not what
    was lost."""
    made = request(prompt=100)
    made.num_computed = 90
    lost = preempt(made)
    made.num_computed, made.num_recompute = 16, 74  # readmitted
    bench.metrics.step(lost, 0.1)
    bench.metrics.step(Batch(slices=(whole(made, 16),)), 0.1)
    assert bench.value("octavo_prompt_tokens_total", source="recomputed") == 74
    assert bench.value("octavo_prompt_tokens_total", source="computed") == 10


def test_a_preemption_shows_in_the_inter_token_latency(bench: Bench) -> None:
    made = request()
    generate(bench, made, 1.0)
    bench.metrics.step(preempt(made), 0.1)
    generate(bench, made, 4.0)
    assert bench.value("octavo_inter_token_latency_seconds_sum") == pytest.approx(3.0)


@pytest.mark.parametrize(
    "reason", [FinishReason.ABORT, FinishReason.DEADLINE, FinishReason.FORM_TOO_COMPLEX, FinishReason.ERROR]
)
def test_what_was_cut_short_does_not_improve_the_end_to_end_latency(bench: Bench, reason: FinishReason) -> None:
    made = request(arrival=5.0)
    finish(bench, made, 9.0, reason)
    assert bench.value("octavo_requests_total", finish_reason=reason.value) == 1
    assert bench.value("octavo_request_end_to_end_seconds_count") == 0
    assert bench.value("octavo_request_queue_seconds_sum") == pytest.approx(4.0)


def test_an_ended_request_is_forgotten(bench: Bench) -> None:
    made = request()
    generate(bench, made, 1.0)
    made.num_computed = 50
    batch = preempt(made)
    bench.metrics.step(batch, 0.1)
    finish(bench, made, 2.0, FinishReason.ABORT)
    bench.metrics.step(batch, 0.1)  # the abort came between the plan and the report
    assert not bench.metrics._computed_before


def test_gauges_are_right_at_once(bench: Bench) -> None:
    bench.now = 20.0
    bench.stats = SchedulerStats(
        waiting={WaitReason.KV_FULL: 3}, running=2, oldest_arrival=12.5, free_blocks=5, cached_blocks=3, used_blocks=2,
        unused_slots=8, block_size=16,
    )  # fmt: skip
    assert bench.value("octavo_requests_waiting", reason="kv_full") == 3
    assert bench.value("octavo_requests_waiting", reason="batch_full") == 0
    assert bench.value("octavo_requests_running") == 2
    assert bench.value("octavo_queue_oldest_seconds") == pytest.approx(7.5)
    assert bench.value("octavo_kv_cache_usage_ratio") == pytest.approx(0.2)
    assert bench.value("octavo_kv_waste_ratio") == pytest.approx(0.25)
    assert [bench.value("octavo_kv_blocks", state=state) for state in ("free", "cached", "used")] == [5, 3, 2]

    bench.stats = SchedulerStats()
    assert bench.value("octavo_requests_waiting", reason="kv_full") == 0
    assert bench.value("octavo_queue_oldest_seconds") == 0
    assert bench.value("octavo_kv_waste_ratio") == 0


def test_the_estimated_queue_follows_the_rate(bench: Bench) -> None:
    made = request(prompt=100)
    admit(made, 0.0)
    bench.metrics.step(Batch(slices=(whole(made),), admitted=(made,)), 0.5)
    assert bench.value("octavo_estimated_queue_seconds") == 0
    bench.stats = SchedulerStats(waiting_prompt_tokens=600, running_prompt_tokens=400)
    assert bench.value("octavo_estimated_queue_seconds") == pytest.approx(5.0)


def test_the_estimated_queue_counts_what_prompts_wait_for(bench: Bench) -> None:
    made, decoding = request(prompt=100), request(prompt=1)
    decoding.tokens.append(7)
    bench.now = 0.5
    bench.metrics.step(Batch(slices=(whole(made),), admitted=(made,), blocked=WaitReason.KV_FULL), 0.5)
    bench.now = 1.5
    bench.metrics.step(Batch(slices=(whole(decoding, 1),), at=0.5, blocked=WaitReason.KV_FULL), 1.0)
    bench.stats = SchedulerStats(waiting_prompt_tokens=1000, step_tokens=100)
    assert bench.value("octavo_estimated_queue_seconds") == pytest.approx(10 * 1.0 + 1000 * 0.005)


def test_a_pause_before_the_other_half_of_a_prompt_counts(bench: Bench) -> None:
    made = request(prompt=100)
    bench.now = 0.5
    bench.metrics.step(Batch(slices=(Slice(made, 0, 50, samples=False),), admitted=(made,)), 0.5)
    bench.now = 1.5
    bench.metrics.step(Batch(slices=(Slice(made, 50, 50, samples=True),), at=1.0), 0.5)
    bench.stats = SchedulerStats(waiting_prompt_tokens=100)
    assert bench.value("octavo_estimated_queue_seconds") == pytest.approx(1.5, rel=0.02)


def test_a_step_that_was_decided_while_another_was_computed_is_no_longer_for_it(bench: Bench) -> None:
    """A short one, decided while a long one was under way: it takes what it takes after that."""
    made, decoding = request(prompt=400), request(prompt=1)
    decoding.tokens.append(7)
    bench.now = 2.0
    first = Batch(slices=(Slice(made, 0, 100, samples=False),), admitted=(made,), blocked=WaitReason.KV_FULL)
    bench.metrics.step(first, 2.0)
    bench.now = 2.1
    bench.metrics.step(Batch(slices=(whole(decoding, 1),), at=0.5, blocked=WaitReason.KV_FULL), 0.1)
    bench.stats = SchedulerStats(waiting_prompt_tokens=100, step_tokens=100)
    assert bench.value("octavo_estimated_queue_seconds") == pytest.approx(0.1 + 100 * 0.02)


def test_the_longest_pause_is_known_with_what_was_computed_in_it(bench: Bench) -> None:
    made, other = request(), request(prompt=700, id="other")
    made.num_computed = 100
    generate(bench, made, 1.0)
    bench.metrics.step(Batch(slices=(whole(made), whole(other)), admitted=(other,)), 0.5)
    generate(bench, made, 1.5)
    bench.metrics.step(Batch(slices=(whole(made),)), 0.1)
    generate(bench, made, 1.6)
    assert (made.longest_gap, made.longest_gap_at, made.longest_gap_prompt) == (0.5, 1.5, 700)


def test_evictions_rejections_and_the_start_are_counted(bench: Bench) -> None:
    bench.metrics.step(Batch(evicted_blocks=4), 0.1)
    bench.metrics.flushed(3)
    bench.metrics.rejected(RejectReason.QUEUE_FULL)
    bench.metrics.startup("weights", 1.5)
    bench.metrics.engine_info(version="1", dtype="bfloat16")
    bench.metrics.cache_info(block_size="16")
    assert bench.value("octavo_prefix_cache_evicted_blocks_total") == 4
    assert bench.value("octavo_prefix_cache_flushed_blocks_total") == 3
    assert bench.value("octavo_requests_rejected_total", reason="queue_full") == 1
    assert bench.value("octavo_startup_seconds", phase="weights") == 1.5
    assert bench.value("octavo_engine_info", version="1", dtype="bfloat16") == 1
    assert bench.value("octavo_cache_info", block_size="16") == 1
    assert [bench.value("octavo_step_seconds_count", kind=kind) for kind in ("prefill", "decode", "mixed")] == [0, 0, 0]


def test_every_series_exists_before_the_first_request_and_none_is_added_by_requests(bench: Bench) -> None:
    before = bench.series()
    for number in range(200):
        made = request(id=f'"}} evil{{\n{number}')
        made.namespace = f"key-{number}"
        admit(made, 0.0)
        bench.metrics.step(Batch(slices=(whole(made),), admitted=(made,)), 0.1)
        generate(bench, made, 0.2)
        finish(bench, made, 0.3)
    assert bench.series() == before


def test_odd_model_names_are_escaped() -> None:
    registry = CollectorRegistry()
    Metrics(registry, model_name='a"b\\c\nd', stats=SchedulerStats)
    assert rb'octavo_requests_running{model_name="a\"b\\c\nd"} 0.0' in generate_latest(registry)


def test_buckets_are_inclusive_and_cumulative() -> None:
    registry = CollectorRegistry()
    histogram = Instruments(registry).histogram("h_seconds", "help", (1, 2))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    counts = [registry.get_sample_value("h_seconds_bucket", {"le": le}) for le in ("1.0", "2.0", "+Inf")]
    assert counts == [2, 4, 5]
    assert registry.get_sample_value("h_seconds_sum") == 104.0


def test_our_histogram_agrees_with_the_client_librarys() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    bounds = (0.001, 0.01, 0.1, 1, 10)
    fast = Instruments(ours, model_name="m").histogram("h_seconds", "help", bounds)
    plain = Histogram("h_seconds", "help", ["model_name"], buckets=bounds, registry=theirs).labels("m")
    for power in range(-50, 50):
        fast.observe(math.exp(power / 10))
        plain.observe(math.exp(power / 10))
    text = [line for line in generate_latest(theirs).decode().splitlines() if "_created" not in line]
    assert sorted(generate_latest(ours).decode().splitlines()) == sorted(text)
