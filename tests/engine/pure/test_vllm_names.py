"""`--metrics-compat vllm`: the engine's figures under vLLM's names, held against our own of the same moment."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from octavo_engine.batch import Batch, SchedulerStats, Slice
from octavo_engine.metrics import Metrics
from octavo_engine.request import EventKind, FinishReason, Request, SamplingParams, Status, WaitReason
from octavo_engine.vllm_names import ALIASES, VllmNames

WHOSE = {"model_name": "m", "engine": "0"}


class Engine:
    """Real metrics on one registry, under both names."""

    def __init__(self) -> None:
        self.registry, self.stats, self.now = CollectorRegistry(), SchedulerStats(), 0.0
        self.metrics = Metrics(self.registry, model_name="m", stats=lambda: self.stats, clock=lambda: self.now)
        self.registry.register(VllmNames(self.metrics.series))

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"vllm:{name}", WHOSE | labels)

    def guess(self, right: int, wrong: int) -> None:
        """A step of a request that had a token before, of whose guesses so many have come true."""
        request = Request(id="r", tokens=[1] * 32, params=SamplingParams(), arrival=self.now, num_computed=31)
        request.token_at = self.now
        piece = Slice(request, 31, 1 + right + wrong, samples=True, draft=(7,) * (right + wrong))
        self.metrics.step(Batch(slices=(piece,)), 0.1)
        for _ in range(1 + right):
            self.metrics.token(request, self.now + 0.1)

    def serve(self, reason: FinishReason, tokens: int = 4) -> None:
        """One request of 32 prompt tokens, 16 of them found, from its receipt to its end."""
        request = Request(id="r", tokens=[1] * 32, params=SamplingParams(), arrival=self.now)
        request.num_cached = request.num_computed = 16
        request.status = Status.RUNNING
        request.note(self.now + 0.5, EventKind.ADMITTED)
        self.metrics.step(Batch(slices=(Slice(request, 16, 16, True),), admitted=(request,)), 0.1)
        for number in range(tokens):
            self.metrics.token(request, self.now + 1 + 0.02 * number)
        request.note(self.now + 1, EventKind.FIRST_TOKEN)
        request.finish_reason = reason
        self.metrics.finished(request, self.now + 2)


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_every_series_of_theirs_is_made_of_one_of_ours(engine: Engine) -> None:
    """A renamed family of ours would leave a name of theirs without a series: boards would be empty without a word."""
    engine.metrics.cache_info(num_blocks="7", block_size="16")
    told = {family.name: family for family in engine.registry.collect() if family.name.startswith("vllm:")}
    assert set(told) == {alias.theirs for alias in ALIASES} | {"vllm:cache_config_info"}
    for alias in ALIASES:
        assert told[alias.theirs].type == alias.type
        assert told[alias.theirs].samples, alias
    assert all(set(WHOSE.items()) <= set(s.labels.items()) for family in told.values() for s in family.samples)


def test_what_waits_is_one_number_whatever_it_waits_for(engine: Engine) -> None:
    engine.stats = SchedulerStats(
        running=3, waiting={WaitReason.KV_FULL: 2, WaitReason.NEW: 1}, used_blocks=3, free_blocks=1, block_size=16
    )
    assert engine.value("num_requests_waiting") == 3
    assert engine.value("num_requests_running") == 3
    assert engine.value("kv_cache_usage_perc") == engine.value("gpu_cache_usage_perc") == 0.75


def test_prompts_count_once_and_cached_tokens_are_hits(engine: Engine) -> None:
    engine.serve(FinishReason.STOP)
    assert engine.value("prompt_tokens_total") == 32
    assert engine.value("generation_tokens_total") == 4
    assert engine.value("prefix_cache_queries_total") == 32
    assert engine.value("prefix_cache_hits_total") == 16


def test_guesses_are_those_of_speculative_decoding(engine: Engine) -> None:
    """What their boards draw as acceptance is the second over the first."""
    engine.guess(right=3, wrong=1)
    engine.guess(right=0, wrong=2)
    assert engine.value("spec_decode_num_draft_tokens_total") == 6
    assert engine.value("spec_decode_num_accepted_tokens_total") == 3


@pytest.mark.parametrize("reason", FinishReason)
def test_every_end_has_a_word_of_theirs(engine: Engine, reason: FinishReason) -> None:
    engine.serve(reason)
    ends = {word: engine.value("request_success_total", finished_reason=word) for word in ("stop", "length", "abort",
            "error")}  # fmt: skip
    assert sum(value or 0.0 for value in ends.values()) == 1
    usual = reason.value if reason.value in ends else "abort"
    assert ends[usual] == 1


def test_histograms_hold_the_same_observations(engine: Engine) -> None:
    engine.serve(FinishReason.STOP)
    for theirs, ours in (
        ("time_to_first_token_seconds", "time_to_first_token_seconds"),
        ("inter_token_latency_seconds", "inter_token_latency_seconds"),
        ("time_per_output_token_seconds", "inter_token_latency_seconds"),
        ("e2e_request_latency_seconds", "request_end_to_end_seconds"),
        ("request_queue_time_seconds", "request_queue_seconds"),
    ):
        for suffix in ("_count", "_sum"):
            own = engine.registry.get_sample_value(f"octavo_{ours}{suffix}", {"model_name": "m"})
            assert own
            assert engine.value(f"{theirs}{suffix}") == own
        assert engine.value(f"{theirs}_bucket", le="+Inf") == engine.value(f"{theirs}_count")


def test_the_page_is_read_back_by_a_parser_of_the_text_format(engine: Engine) -> None:
    """Colons in names, and a histogram whose name ends in `_total`."""
    engine.metrics.cache_info(num_blocks="7", block_size="16")
    engine.serve(FinishReason.STOP)
    families = {
        family.name: family for family in text_string_to_metric_families(generate_latest(engine.registry).decode())
    }
    assert families["vllm:iteration_tokens_total"].type == "histogram"
    (layout,) = families["vllm:cache_config_info"].samples
    assert (layout.value, layout.labels["num_gpu_blocks"], layout.labels["block_size"]) == (1, "7", "16")


def test_nobody_who_has_not_asked_has_them() -> None:
    registry = CollectorRegistry()
    Metrics(registry, model_name="m", stats=SchedulerStats)
    assert "vllm:" not in generate_latest(registry).decode()
