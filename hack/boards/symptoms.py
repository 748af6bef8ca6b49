"""The board "What is wrong": each symptom with its evidence, the likely cause, and the one thing to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard

from boards import frame, panels
from boards.panels import Events, Panel, graph, notes
from boards.queries import Query, happened, highest, operator_series, percentiles, quantile, rate, ratio, series, total

FIRST_TOKEN, INTER_TOKEN = "octavo_time_to_first_token_seconds", "octavo_inter_token_latency_seconds"
LOOKED_UP = "octavo_prefix_cache_tokens_total"


@dataclass(frozen=True)
class Symptom:
    """A row of the board.

    Attributes:
        seen: what somebody notices.
        cause: what it likely is, if the panels beside it say so.
        change: the one thing to change, and then to look again.
        evidence: two panels.
    """

    seen: str
    cause: str
    change: str
    evidence: Callable[[], tuple[Panel, Panel]]

    def panels(self) -> list[Panel]:
        """What to think at the left, what to look at beside it."""
        words = f"**Likely**\n\n{self.cause}\n\n**Change one thing**\n\n{self.change}"
        told = notes(f"{self.seen}?", "The likely cause, if the panels at the right look as it says.", words)
        return [told, *(panel.span(9) for panel in self.evidence())]


def board() -> dashboard.Dashboard:
    """The whole board."""
    decided = happened(operator_series("octavo_operator_scaling_decisions_total"))
    return frame.board(
        frame.Frame(
            title="What is wrong",
            uid="octavo-wrong",
            description="From a symptom to its evidence, its likely cause and the one setting to change. Change one,"
            " look again.",
            variables=frame.one_service(),
            marks=[Events("Scaling", decided, "{{reason}}")],
        ),
        {symptom.seen: symptom.panels for symptom in SYMPTOMS},
    )


def _waiting() -> Query:
    return Query(total(series("octavo_requests_waiting"), "reason"), "waiting {{reason}}")


def _batches_full() -> tuple[Panel, Panel]:
    return (
        graph(
            "First token",
            "Up while as many run as may: the replicas do what they can, and requests queue for them.",
            panels.SECONDS,
            *percentiles(FIRST_TOKEN),
        ),
        graph(
            "Running against waiting",
            "Running at its ceiling while batch_full waits.",
            panels.COUNT,
            Query(total(series("octavo_requests_running")), "running"),
            _waiting(),
        ),
    )


def _long_prompts() -> tuple[Panel, Panel]:
    shares = (quantile(share, FIRST_TOKEN) for share in ("0.99", "0.5"))
    return (
        graph(
            "First token: P99 over P50",
            "Far above 1: a few requests wait much longer than the rest. Above 5 it is rarely chance.",
            panels.COUNT,
            Query(ratio(*shares), "P99 / P50"),
            limit=5,
        ),
        graph(
            "Prompt lengths",
            "P99 far above P50 here too: those few are the long prompts, or stand behind them.",
            panels.TOKENS,
            *percentiles("octavo_request_prompt_tokens"),
        ),
    )


def _prefix_misses() -> tuple[Panel, Panel]:
    hits = total(rate(LOOKED_UP, 'result="hit"'), "pod")
    return (
        graph(
            "Prefix hits by pod",
            "With a fixed system prompt it should be the prompt's share of all tokens, on every pod.",
            panels.RATIO,
            Query(ratio(hits, total(rate(LOOKED_UP), "pod")), "{{pod}}"),
        ),
        graph(
            "Cached and evicted blocks",
            "Evictions beside few cached blocks: requests need the room. None of either: caching is off.",
            panels.COUNT,
            Query(total(series("octavo_kv_blocks", 'state="cached"')), "cached"),
            Query(total(rate("octavo_prefix_cache_evicted_blocks_total")), "evicted a second"),
        ),
    )


def _slow_steps() -> tuple[Panel, Panel]:
    return (
        graph(
            "Inter-token latency beside steps",
            "It follows the steps: mixed above decode means that prompts' chunks are in the way.",
            panels.SECONDS,
            Query(quantile("0.99", INTER_TOKEN), "inter-token P99"),
            *(Query(query.expr, f"step {query.legend}") for query in percentiles("octavo_step_seconds", "kind")[-1:]),
        ),
        graph(
            "Requests in a batch",
            "Each is computed in every step: the more there are, the longer it takes.",
            panels.COUNT,
            Query(highest(series("octavo_requests_running"), "pod"), "running {{pod}}"),
        ),
    )


def _memory_bound() -> tuple[Panel, Panel]:
    return (
        graph(
            "Throughput",
            "Down while requests run.",
            panels.TOKENS_PER_SECOND,
            Query(total(rate("octavo_generation_tokens_total")), "generated"),
            Query(total(rate("octavo_prompt_tokens_total"), "source"), "prompt {{source}}"),
        ),
        graph(
            "Roofline of decodes",
            "memory near 1: every weight is read for few tokens. Both below a half: it is not the device.",
            panels.RATIO,
            Query(highest(series("octavo_roofline_ratio", 'phase="decode"'), "bound"), "{{bound}}"),
        ),
    )


def _queue_grows() -> tuple[Panel, Panel]:
    return (
        graph(
            "Queue by reason",
            "The reason that grows is the one to act on.",
            panels.COUNT,
            _waiting(),
            stacked=True,
        ),
        graph(
            "Oldest and estimated wait",
            "Near the clients' patience: they give up, and their work is lost.",
            panels.SECONDS,
            Query(highest(series("octavo_queue_oldest_seconds")), "oldest"),
            Query(highest(series("octavo_estimated_queue_seconds")), "estimated"),
            limit=30,
        ),
    )


def _preempted() -> tuple[Panel, Panel]:
    sources = total(rate("octavo_prompt_tokens_total", 'source="recomputed"'))
    return (
        graph(
            "Preemptions",
            "A second, by reason; and the share of prompt tokens that are computed again.",
            panels.COUNT,
            Query(total(rate("octavo_preemptions_total"), "reason"), "{{reason}}"),
            Query(ratio(sources, total(rate("octavo_prompt_tokens_total"))), "share computed again"),
        ),
        graph(
            "KV use by pod",
            "At 1, every new block is taken from somebody.",
            panels.RATIO,
            Query(highest(series("octavo_kv_cache_usage_ratio"), "pod"), "{{pod}}"),
            limit=0.95,
        ),
    )


SYMPTOMS = (
    Symptom(
        "The first token comes late, and throughput is high",
        "Batches are full: running stands at its ceiling, and `batch_full` waits.",
        "More replicas; or a higher `maxNumSeqs`, if the inter-token latency leaves room.",
        _batches_full,
    ),
    Symptom(
        "The first token's P99 is far above its P50",
        "Long prompts: some requests have them, and others wait behind them.",
        "Chunked prefill on (`enableChunkedPrefill`); then bound prompts with `--max-prompt-tokens`.",
        _long_prompts,
    ),
    Symptom(
        "The first token comes late for a fixed system prompt",
        "Its prefix is not found: the cache is off, evicted, or scoped apart by API key.",
        "`enablePrefixCaching`; `prefixCacheScope: server` for one trusted tenant; a larger share for KV.",
        _prefix_misses,
    ),
    Symptom(
        "Words follow slowly",
        "The batch is too large, or chunks of prompts are too long.",
        "A lower `maxNumBatchedTokens` if mixed steps are the slow ones; else a lower `maxNumSeqs`.",
        _slow_steps,
    ),
    Symptom(
        "Throughput is low, and the device is busy",
        "Decodes are bound by memory: they read all weights for few tokens.",
        "A larger batch, if requests wait; else quantization.",
        _memory_bound,
    ),
    Symptom(
        "The queue grows",
        "`kv_full`: prompts do not fit into memory. `batch_full`: as many run as may.",
        "More replicas. For `kv_full` also quantization or a smaller `maxModelLen`.",
        _queue_grows,
    ),
    Symptom(
        "Answers pause, and requests are preempted",
        "KV memory is too small for what runs at the same time.",
        "A higher `gpuMemoryUtilization`, quantization, or a lower `maxNumSeqs`.",
        _preempted,
    ),
)
