"""The Service board: one InferenceService and its pods, the four metrics first."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import VariableOption

from boards import frame, panels
from boards.panels import Events, Panel, bars, graph, labels
from boards.queries import (
    PERCENTILES,
    Query,
    chosen_percentile_by_pod,
    happened,
    highest,
    operator_series,
    percentiles,
    rate,
    ratio,
    series,
    total,
)


def board() -> dashboard.Dashboard:
    """The whole board."""
    decided = happened(operator_series("octavo_operator_scaling_decisions_total"))
    return frame.board(
        frame.Frame(
            title="Service",
            uid="octavo-service",
            description="One InferenceService: latency, throughput, queue, KV cache, steps and start, by service and by"
            " pod.",
            variables=[*frame.one_service(), _percentile()],
            marks=[Events("Scaling", decided, "{{reason}}")],
        ),
        ROWS,
    )


def _percentile() -> dashboard.CustomVariable:
    return (
        dashboard.CustomVariable("percentile")
        .label("Percentile by pod")
        .values(", ".join(f"{name} : {share}" for name, share in PERCENTILES.items()))
        .options([VariableOption(text=name, value=share) for name, share in PERCENTILES.items()])
        .current(VariableOption(selected=True, text="P99", value=PERCENTILES["P99"]))
    )


def _four_metrics() -> list[Panel]:
    return [
        graph(
            "Time to first token",
            "From receipt of the request to its first token. Up with high throughput: batches are full, add replicas or"
            " raise maxNumSeqs. P99 far above P50: long prompts, check chunked prefill.",
            panels.SECONDS,
            *percentiles("octavo_time_to_first_token_seconds"),
            width=12,
        ),
        graph(
            "Inter-token latency",
            "Between two steps that gave tokens of one request. Up: the batch is too large (maxNumSeqs) or prefill"
            " chunks are too long (maxNumBatchedTokens).",
            panels.SECONDS,
            *percentiles("octavo_inter_token_latency_seconds"),
            width=12,
        ),
        graph(
            "Throughput",
            "Generated tokens, and prompt tokens by where their K/V came from. Recomputed tokens are work done twice.",
            panels.TOKENS_PER_SECOND,
            Query(total(rate("octavo_generation_tokens_total")), "generated"),
            Query(total(rate("octavo_prompt_tokens_total"), "source"), "prompt {{source}}"),
            width=12,
        ),
        graph(
            "Queue depth",
            "Waiting requests by what they wait for, and running ones. kv_full: more replicas, quantization or a"
            " smaller maxModelLen. batch_full: more replicas or a higher maxNumSeqs.",
            panels.COUNT,
            Query(total(series("octavo_requests_waiting"), "reason"), "waiting {{reason}}"),
            Query(total(series("octavo_requests_running")), "running"),
            width=12,
        ),
    ]


def _by_pod() -> list[Panel]:
    return [
        graph(
            "Time to first token by pod",
            "The percentile chosen above.",
            panels.SECONDS,
            chosen_percentile_by_pod("octavo_time_to_first_token_seconds"),
            width=6,
        ),
        graph(
            "Inter-token latency by pod",
            "The percentile chosen above.",
            panels.SECONDS,
            chosen_percentile_by_pod("octavo_inter_token_latency_seconds"),
            width=6,
        ),
        graph(
            "Generated tokens by pod",
            "Pods far apart: clients keep old connections, or prefixes are spread unevenly.",
            panels.TOKENS_PER_SECOND,
            Query(total(rate("octavo_generation_tokens_total"), "pod"), "{{pod}}"),
            width=6,
        ),
        graph(
            "Waiting requests by pod",
            "The number that the autoscaler compares with targetQueueDepth.",
            panels.COUNT,
            Query(total(series("octavo_requests_waiting"), "pod"), "{{pod}}"),
            width=6,
        ),
    ]


def _queue() -> list[Panel]:
    return [
        graph(
            "Time in the queue",
            "From receipt to admission.",
            panels.SECONDS,
            *percentiles("octavo_request_queue_seconds"),
        ),
        graph(
            "Queue, in seconds",
            "How long the oldest waiting request has waited, and what all waiting prompts would take.",
            panels.SECONDS,
            Query(highest(series("octavo_queue_oldest_seconds")), "oldest"),
            Query(highest(series("octavo_estimated_queue_seconds")), "estimated"),
        ),
        graph(
            "Requests",
            "Requests that ended, by reason, and requests refused at the door.",
            panels.REQUESTS_PER_SECOND,
            Query(total(rate("octavo_requests_total"), "finish_reason"), "{{finish_reason}}"),
            Query(total(rate("octavo_requests_rejected_total"), "reason"), "rejected {{reason}}"),
        ),
    ]


def _replicas() -> list[Panel]:
    replicas, figures = "octavo_operator_service_replicas", "octavo_operator_scaling_input"
    ready, present = (highest(operator_series(replicas, f'state="{state}"')) for state in ("ready", "present"))
    return [
        graph(
            "Replicas",
            "Desired above ready for long: pods start slowly, or the cluster has no accelerator for them; the"
            " conditions of the resource say which.",
            panels.COUNT,
            Query(highest(operator_series(replicas, 'state="desired"')), "desired"),
            Query(ready, "ready"),
            Query(f"{present} - {ready}", "starting"),
        ),
        graph(
            "What the autoscaler sees",
            "Requests waiting and running over all pods, and how many one replica can run. The marks on all graphs are"
            " its decisions. Empty where replicas are fixed.",
            panels.COUNT,
            Query(highest(operator_series(figures, 'input="waiting"')), "waiting"),
            Query(highest(operator_series(figures, 'input="running"')), "running"),
            Query(highest(operator_series(figures, 'input="capacity"')), "capacity of a replica"),
        ),
        labels(
            "Conditions",
            "What the operator says of the service, with the reason. The resource's status has the words.",
            Query(total(operator_series("octavo_operator_service_condition"), "type", "status", "reason"), ""),
        ),
    ]


def _cache() -> list[Panel]:
    hits = total(rate("octavo_prefix_cache_tokens_total", 'result="hit"'))
    return [
        graph(
            "KV cache use",
            "Share of the KV blocks that running requests hold. Near 1 with preemptions: the cache is too small.",
            panels.RATIO,
            Query(highest(series("octavo_kv_cache_usage_ratio"), "pod"), "{{pod}}"),
        ),
        graph(
            "KV blocks",
            "Used by requests, cached prefixes (free on demand), and free.",
            panels.COUNT,
            Query(total(series("octavo_kv_blocks"), "state"), "{{state}}"),
            stacked=True,
        ),
        graph(
            "KV waste",
            "Share of the token slots in used blocks that hold no token: half a block a request, whatever the length,"
            " and a prompt's blocks until they are computed.",
            panels.RATIO,
            Query(highest(series("octavo_kv_waste_ratio"), "pod"), "{{pod}}"),
        ),
        graph(
            "Prefix cache hit ratio",
            "Share of the prompt tokens found in the cache. Low with a fixed system prompt: caching is off, scoped"
            " apart, or evicted.",
            panels.RATIO,
            Query(ratio(hits, total(rate("octavo_prefix_cache_tokens_total"))), "hit ratio"),
        ),
        graph(
            "Evicted blocks",
            "Cached blocks given up for new tokens, a second. High beside a falling hit ratio: the cache is too small.",
            panels.COUNT,
            Query(total(rate("octavo_prefix_cache_evicted_blocks_total"), "pod"), "{{pod}}"),
        ),
        graph(
            "Preemptions",
            "Running requests that lost their blocks, a second: each is recomputed. More memory, quantization or fewer"
            " maxNumSeqs.",
            panels.COUNT,
            Query(total(rate("octavo_preemptions_total"), "reason"), "{{reason}}"),
        ),
    ]


def _requests() -> list[Panel]:
    return [
        graph(
            "Prefill",
            "From admission to the first token.",
            panels.SECONDS,
            *percentiles("octavo_request_prefill_seconds"),
        ),
        graph(
            "Decode", "From the first token to the last.", panels.SECONDS, *percentiles("octavo_request_decode_seconds")
        ),
        graph(
            "End to end",
            "From receipt to the end, whole answers only.",
            panels.SECONDS,
            *percentiles("octavo_request_end_to_end_seconds"),
        ),
        graph(
            "Prompt length",
            "Long prompts explain a high P99 of the time to first token.",
            panels.TOKENS,
            *percentiles("octavo_request_prompt_tokens"),
            width=12,
        ),
        graph(
            "Answer length",
            "Generated tokens of a request.",
            panels.TOKENS,
            *percentiles("octavo_request_generation_tokens"),
            width=12,
        ),
    ]


def _engine() -> list[Panel]:
    return [
        graph(
            "Step time, P50 and P99",
            "One step of the engine by what it computed. The inter-token latency follows the mixed and decode steps.",
            panels.SECONDS,
            *percentiles("octavo_step_seconds", "kind")[::2],
            width=6,
        ),
        graph(
            "Tokens in a step",
            "At maxNumBatchedTokens while prompts wait for token_budget: raise it; inter-token latency pays for it.",
            panels.TOKENS,
            *percentiles("octavo_step_tokens"),
            width=6,
        ),
        graph(
            "Guessed tokens",
            "Tokens that steps guessed and computed beside those that were due, and those that came true: each saved"
            " its request a step. Few come true: answers repeat little, and guesses get fewer by themselves;"
            " --num-speculative-tokens 0 makes none. No guesses: penalties, answers of a given form, or CUDA.",
            panels.TOKENS_PER_SECOND,
            Query(total(rate("octavo_draft_tokens_total")), "drafted"),
            Query(total(rate("octavo_draft_tokens_accepted_total")), "accepted"),
            width=6,
        ),
        graph(
            "Roofline",
            "The least time that the recent steps could take, over the time that they took, by what bounds it. Memory"
            " near 1 in decodes: only larger batches or fewer bytes (quantization) give more. All below a half:"
            " something else takes the time. Zero: no such step for half a minute.",
            panels.RATIO,
            Query(highest(series("octavo_roofline_ratio"), "phase", "bound"), "{{phase}} {{bound}}"),
            width=6,
        ),
        bars(
            "Start-up by phase",
            "The slowest pod's.",
            panels.SECONDS,
            Query(highest(series("octavo_startup_seconds"), "phase"), "{{phase}}"),
        ),
        graph(
            "Pods by what they are at",
            "From starting over warming to serving. Long in starting: a large model, a slow store, or a cache that is"
            " not there.",
            panels.COUNT,
            Query(total(series("octavo_server_state"), "state"), "{{state}}"),
            stacked=True,
        ),
        graph(
            "Container restarts",
            "Of the replicas that are there. Rising: the conditions have the container's last words.",
            panels.COUNT,
            Query(highest(operator_series("octavo_operator_service_restarts")), "restarts"),
        ),
        labels("Engine", "What runs.", Query(series("octavo_engine_info"), ""), width=12),
        labels("KV cache", "How it is laid out.", Query(series("octavo_cache_info"), ""), width=12),
    ]


ROWS = {
    "The four metrics": _four_metrics,
    "By pod": _by_pod,
    "Queue": _queue,
    "Replicas": _replicas,
    "KV cache": _cache,
    "Requests": _requests,
    "Engine": _engine,
}
