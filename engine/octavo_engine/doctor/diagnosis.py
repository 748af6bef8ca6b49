"""What limits an engine, with the figures that say so and the setting to change first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from octavo_engine.doctor.facts import Facts
from octavo_engine.roofline_share import limiter

KV_NEARLY_FULL = 0.95
SELDOM_BUSY = 0.7  # with requests running all the time, the steps should take nearly all of it


class Limiter(StrEnum):
    """Why an engine does not do more."""

    LOAD = "load"  # nobody asks for more
    QUEUE = "queue"  # a limit of requests or tokens, in a flag
    KV = "kv"  # KV blocks
    HTTP = "http"  # what happens between two steps
    MEMORY = "memory"  # the memory's speed
    COMPUTE = "compute"  # the processor's speed
    OVERHEAD = "overhead"  # within a step, neither of these


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that limits."""

    limiter: Limiter
    evidence: str
    advice: str


QUEUE_ADVICE = {
    "batch_full": "raise --max-num-seqs while KV blocks are free, or add replicas",
    "token_budget": "raise --max-num-batched-tokens if streams may pause longer, or add replicas",
}
STEP_ADVICE = {
    Limiter.MEMORY: "more sequences at once share each read of the weights; a shorter context, fewer bytes a weight or"
    " faster memory make the read shorter",
    Limiter.COMPUTE: "a faster device or more threads; prompts that begin alike are computed once if their prefix is"
    " cached; or add replicas",
    Limiter.OVERHEAD: "it is far from what the machine can do: more sequences at once, longer chunks, the compiled"
    " kernels (see the log's first lines), and a processor that nothing else uses",
}


def diagnose(facts: Facts) -> list[Finding]:
    """All that limits, the most important first; never empty."""
    return [*_around(facts), *_within(facts)] or [_nothing_to_do(facts)]


def _around(facts: Facts) -> Iterator[Finding]:
    """What keeps requests from being in a step at all."""
    reason, waiting = max(facts.waiting.items(), key=lambda item: item[1], default=("", 0.0))
    if facts.preempted or (reason == "kv_full" and waiting >= 1) or facts.kv_usage >= KV_NEARLY_FULL:
        yield Finding(
            Limiter.KV,
            f"{100 * facts.kv_usage:.0f} % of the KV blocks are held, {facts.preempted:.0f} requests were preempted,"
            f" {facts.waiting.get('kv_full', 0.0):.0f} wait for blocks",
            "give the cache more memory, lower --max-model-len or --max-num-seqs, or add replicas;"
            " octavo plan says how many sequences fit",
        )
    elif waiting >= 1 and reason in QUEUE_ADVICE:
        full = f", and {facts.rejected:.0f} were refused" if facts.rejected else ""
        yield Finding(Limiter.QUEUE, f"{waiting:.0f} requests wait for {reason}{full}", QUEUE_ADVICE[reason])
    if facts.always_running and facts.busy < SELDOM_BUSY:
        yield Finding(
            Limiter.HTTP,
            f"requests ran all the time, but steps took {100 * facts.busy:.0f} % of it",
            "the rest is between steps: give the process a processor of its own, and look for slow clients",
        )


def _within(facts: Facts) -> Iterator[Finding]:
    """What keeps a step from being faster."""
    phase = facts.main_phase
    spent, shares = facts.step_seconds[phase], facts.shares[phase]
    if spent <= 0 or (not facts.always_running and facts.busy < SELDOM_BUSY):
        return
    bound = Limiter(limiter(shares))
    yield Finding(
        bound,
        f"{phase} steps took {100 * spent / facts.seconds:.0f} % of the time, at {100 * shares['memory']:.0f} % of the"
        f" memory's speed and {100 * shares['compute']:.0f} % of the processor's",
        STEP_ADVICE[bound],
    )


def _nothing_to_do(facts: Facts) -> Finding:
    return Finding(
        Limiter.LOAD,
        f"steps took {100 * facts.busy:.0f} % of the time, and {facts.running:.1f} requests ran on average",
        "the engine waits for requests: it could take more",
    )
