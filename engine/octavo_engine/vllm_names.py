"""`--metrics-compat vllm`: the same figures once more, under the names that vLLM's boards and queries ask for.

A table and one rule: samples of one of our series become samples of one of theirs, and those that differ only in labels
which vLLM lacks are added up. Nothing is counted twice while requests run, and what is not asked for costs nothing. The
names, types and labels are those that vLLM documents for its version 1; the bounds of histograms are ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.registry import Collector

from octavo_engine.request import FinishReason

ENGINE = {"engine": "0"}
"""vLLM numbers the engines of one server; there is one here."""
MODEL = "model_name"
KEPT = (MODEL, "le")

_ENDED: Mapping[str, str] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ERROR: "error",
    FinishReason.ABORT: "abort",
    # A limit of its form, which is the client's, and no error of the engine.
    FinishReason.FORM_TOO_COMPLEX: "abort",
    # A limit of time ended these from outside, which is what vLLM calls aborted.
    FinishReason.DEADLINE: "abort",
    FinishReason.QUEUE_DEADLINE: "abort",
}


@dataclass(frozen=True)
class Alias:
    """One family of theirs, made of one of ours.

    Attributes:
        ours, theirs: names of families: a counter's without `_total`, an info's without `_info`.
        type: Prometheus' type of theirs.
        only: a label of ours, and those of its values that count; all, without it.
        renamed: a label of ours, what vLLM calls it, and its values in vLLM's words.
    """

    ours: str
    theirs: str
    type: str
    only: tuple[str, Collection[str]] | None = None
    renamed: tuple[str, str, Mapping[str, str]] | None = None


def _histograms(names: Mapping[str, str]) -> Iterator[Alias]:
    for ours, theirs in names.items():
        yield Alias(f"octavo_{ours}", f"vllm:{theirs}", "histogram")


ALIASES = (
    Alias("octavo_requests_running", "vllm:num_requests_running", "gauge"),
    Alias("octavo_requests_waiting", "vllm:num_requests_waiting", "gauge"),
    # Both are shares from 0 to 1, whatever they are called; the second is what versions before 0.10 said.
    Alias("octavo_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", "gauge"),
    Alias("octavo_kv_cache_usage_ratio", "vllm:gpu_cache_usage_perc", "gauge"),
    Alias("octavo_preemptions", "vllm:num_preemptions", "counter"),
    # A prompt's tokens count once, found or computed; what a preemption makes compute again is no prompt of anybody.
    Alias("octavo_prompt_tokens", "vllm:prompt_tokens", "counter", only=("source", ("computed", "cached"))),
    Alias("octavo_generation_tokens", "vllm:generation_tokens", "counter"),
    Alias("octavo_draft_tokens", "vllm:spec_decode_num_draft_tokens", "counter"),
    Alias("octavo_draft_tokens_accepted", "vllm:spec_decode_num_accepted_tokens", "counter"),
    Alias("octavo_prefix_cache_tokens", "vllm:prefix_cache_queries", "counter"),
    Alias("octavo_prefix_cache_tokens", "vllm:prefix_cache_hits", "counter", only=("result", ("hit",))),
    Alias("octavo_requests", "vllm:request_success", "counter", renamed=("finish_reason", "finished_reason", _ENDED)),
    *_histograms(
        {
            "time_to_first_token_seconds": "time_to_first_token_seconds",
            "inter_token_latency_seconds": "inter_token_latency_seconds",
            "request_end_to_end_seconds": "e2e_request_latency_seconds",
            "request_queue_seconds": "request_queue_time_seconds",
            "request_prefill_seconds": "request_prefill_time_seconds",
            "request_decode_seconds": "request_decode_time_seconds",
            "request_prompt_tokens": "request_prompt_tokens",
            "request_generation_tokens": "request_generation_tokens",
            "step_tokens": "iteration_tokens_total",
        }
    ),
    # What the inter-token latency was called before 0.11; boards of then ask for it.
    Alias("octavo_inter_token_latency_seconds", "vllm:time_per_output_token_seconds", "histogram"),
)

CACHE, CACHE_LABELS = "octavo_cache", {"num_blocks": "num_gpu_blocks"}
"""Of the cache's layout: the family, and which of its labels have other names there."""


@dataclass(eq=False)  # a registry tells collectors apart by identity
class VllmNames(Collector):
    """Exports what `source` holds under vLLM's names; asked at each scrape, as `source` itself is."""

    source: Collector
    _wanted: dict[str, list[Alias]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for alias in ALIASES:
            self._wanted.setdefault(alias.ours, []).append(alias)

    def collect(self) -> Iterable[Metric]:
        """Their families, in the order of ours."""
        for family in self.source.collect():
            for alias in self._wanted.get(family.name, ()):
                yield told_as(alias, family)
            if family.name == CACHE:
                yield _cache_config(family)


def told_as(alias: Alias, family: Metric) -> Metric:
    """A family of ours as theirs; samples that come to have equal names and labels are added up."""
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in family.samples:
        if alias.only is not None and sample.labels.get(alias.only[0]) not in alias.only[1]:
            continue
        name = alias.theirs + sample.name.removeprefix(alias.ours)
        key = name, tuple(_labels(alias, sample.labels).items())
        sums[key] = sums.get(key, 0.0) + sample.value
    told = Metric(alias.theirs, family.documentation, alias.type)
    for (name, labels), value in sums.items():
        told.add_sample(name, dict(labels), value)
    return told


def _labels(alias: Alias, labels: Mapping[str, str]) -> dict[str, str]:
    told = ENGINE | {label: labels[label] for label in KEPT if label in labels}
    if alias.renamed is not None:
        ours, theirs, words = alias.renamed
        told[theirs] = words[labels[ours]]
    return told


def _cache_config(family: Metric) -> Metric:
    told = Metric("vllm:cache_config_info", family.documentation, "gauge")
    for sample in family.samples:
        labels = {CACHE_LABELS.get(label, label): value for label, value in sample.labels.items()}
        told.add_sample(told.name, ENGINE | labels, sample.value)
    return told
