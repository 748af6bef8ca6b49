"""The board "What is wrong": each symptom with its evidence, the likely cause, and the one thing to change.

Its rows are those of `octavo doctor`: a test holds that each of its words for what limits an engine has one.
"""

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
        limiters: what `octavo doctor` calls it.
    """

    seen: str
    cause: str
    change: str
    evidence: Callable[[], tuple[Panel, Panel]]
    limiters: tuple[str, ...]

    def panels(self) -> list[Panel]:
        """What to think at the left, what to look at beside it."""
        names = " or ".join(f"`{limiter}`" for limiter in self.limiters)
        words = (
            f"**Likely**\n\n{self.cause}\n\n**Change one thing**\n\n{self.change}\n\n`octavo doctor` calls it {names}."
        )
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


def _stopped() -> tuple[Panel, Panel]:
    stopped = rate("octavo_cpu_periods_total", 'result="throttled"')
    return (
        graph(
            "Stopped by the CPU limit",
            "How often a second the limit was used up, and all of a pod stood still until the next period of 0.1 s."
            " Zero without a limit.",
            panels.COUNT,
            Query(total(stopped, "pod"), "{{pod}}"),
            limit=1,
        ),
        graph(
            "Step time, P50 and P99",
            "P99 far above P50: some steps stand still until the next period begins.",
            panels.SECONDS,
            *percentiles("octavo_step_seconds")[::2],
        ),
    )


def _kept_from_stepping() -> tuple[Panel, Panel]:
    rejected = total(rate("octavo_requests_rejected_total"), "reason")
    return (
        graph(
            "What steps wait for",
            "Share of the time, by the kernel's account. interpreter: another thread of the process had it. processor:"
            " others on the node had them all.",
            panels.RATIO,
            Query(highest(rate("octavo_step_thread_wait_seconds_total"), "resource"), "{{resource}}"),
            limit=0.1,
        ),
        graph(
            "Requests that are read",
            "Those that ended, and those refused at the door, which were read as well. Few, beside a high wait for the"
            " interpreter: their bodies are large.",
            panels.REQUESTS_PER_SECOND,
            Query(total(rate("octavo_requests_total")), "ended"),
            Query(rejected, "refused {{reason}}"),
        ),
    )


def _idle() -> tuple[Panel, Panel]:
    return (
        graph(
            "Share of the time in steps",
            "Well below 1 while clients wait: the engine waits for their requests.",
            panels.RATIO,
            Query(total(rate("octavo_step_seconds_sum"), "pod"), "{{pod}}"),
        ),
        graph(
            "Running and waiting",
            "Few running and none waiting: more could be sent at the same time.",
            panels.COUNT,
            Query(total(series("octavo_requests_running")), "running"),
            Query(total(series("octavo_requests_waiting")), "waiting"),
        ),
    )


def _bounds() -> tuple[Panel, Panel]:
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
            "memory near 1: every weight is read for few tokens. Both below a half: it is not the device. Zero: there"
            " were none for half a minute.",
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
        ("queue",),
    ),
    Symptom(
        "The first token's P99 is far above its P50",
        "Long prompts: some requests have them, and others wait behind them.",
        "Chunked prefill on (`enableChunkedPrefill`); then bound prompts with `--max-prompt-tokens`.",
        _long_prompts,
        ("prompts",),
    ),
    Symptom(
        "The first token comes late for a fixed system prompt",
        "Its prefix is not found: the cache is off, evicted, or scoped apart by API key.",
        "`enablePrefixCaching`; `prefixCacheScope: server` for one trusted tenant; a larger share for KV.",
        _prefix_misses,
        ("prefix",),
    ),
    Symptom(
        "Words follow slowly",
        "The batch is too large, or chunks of prompts are too long.",
        "A lower `maxNumBatchedTokens` if mixed steps are the slow ones; else a lower `maxNumSeqs`.",
        _slow_steps,
        ("batch",),
    ),
    Symptom(
        "Throughput is low, and the device is busy",
        "`memory` near 1: decodes read all weights for few tokens. `compute` near 1: products take the time. Both below"
        " a half: launches, or a processor that others use.",
        "A larger batch, if requests wait; else, for `memory` quantization, for `compute` more replicas.",
        _bounds,
        ("memory", "compute", "overhead"),
    ),
    Symptom(
        "The queue grows",
        "`kv_full`: prompts do not fit into memory. `batch_full`: as many run as may.",
        "More replicas. For `kv_full` also quantization or a smaller `maxModelLen`.",
        _queue_grows,
        ("kv", "queue"),
    ),
    Symptom(
        "Answers pause, and requests are preempted",
        "KV memory is too small for what runs at the same time.",
        "A higher `gpuMemoryUtilization`, quantization, or a lower `maxNumSeqs`.",
        _preempted,
        ("kv",),
    ),
    Symptom(
        "Answers pause, and the container has a CPU limit",
        "The limit is used up before a period of 0.1 s is over, and nothing moves until the next.",
        "A higher `resources.limits.cpu`; else fewer `--threads`.",
        _stopped,
        ("cpu",),
    ),
    Symptom(
        "Throughput falls while other requests are read",
        "Large bodies: reading one keeps the interpreter, and no step begins meanwhile.",
        "More replicas, each of which has an interpreter of its own; or a lower `--max-body-bytes`.",
        _kept_from_stepping,
        ("http",),
    ),
    Symptom(
        "Clients wait, and the engine does not",
        "It could do more: what is slow is the client, or the way to it.",
        "More requests at the same time; then look at what lies between.",
        _idle,
        ("load",),
    ),
)
