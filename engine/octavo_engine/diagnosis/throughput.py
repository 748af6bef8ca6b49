"""What keeps an engine from doing more: what happens around its steps, and within them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from octavo_engine.counted import counted
from octavo_engine.diagnosis.facts import Facts
from octavo_engine.diagnosis.findings import SELDOM_BUSY, Finding, Limiter, percent
from octavo_engine.roofline_share import limiter

KV_NEARLY_FULL = 0.95
KV_ROOM = 0.5  # below this, twice as many requests of today's kind fit
THROTTLED = 0.1
HELD_UP = 0.1  # hundredths where nobody keeps the interpreter
CROWDED = 0.1


def around(facts: Facts) -> Iterator[Finding]:
    """What keeps requests from being in a step at all, or steps from following each other."""
    if facts.throttled >= THROTTLED:
        yield _throttled(facts)
    reason, waiting = max(facts.waiting.items(), key=lambda item: item[1], default=("", 0.0))
    if facts.preempted or (reason == "kv_full" and waiting >= 1) or facts.kv_usage >= KV_NEARLY_FULL:
        yield _blocks(facts)
    elif waiting >= 1 and reason in ("batch_full", "token_budget"):
        yield _queue(facts, reason, waiting)
    if facts.waited.get("interpreter", 0.0) >= HELD_UP:
        yield _interpreter(facts.waited["interpreter"])


def within(facts: Facts) -> Iterator[Finding]:
    """What keeps a step from being faster."""
    phase = facts.main_phase
    spent, shares = facts.step_seconds[phase], facts.shares[phase]
    if spent <= 0 or (not facts.always_running and facts.busy < SELDOM_BUSY):
        return
    bound = Limiter(limiter(shares))
    advice, effect = _STEP[bound]
    reached, queued = max(shares.values()), facts.waited.get("processor", 0.0)
    crowded = f"; for {percent(queued)} of it they waited for a processor" if queued >= CROWDED else ""
    yield Finding(
        bound,
        f"{phase} steps took {percent(spent / facts.seconds)} of the time, at {percent(shares['memory'])} of the"
        f" memory's speed and {percent(shares['compute'])} of the processor's{crowded}",
        advice,
        effect.format(times=f"{1 / reached:.1f}" if reached else "many"),
    )


def nothing_to_do(facts: Facts) -> Finding:
    """When nothing of ours does."""
    more = f"about {1 / facts.busy:.1f} times as much" if facts.busy >= 0.01 else "all that it can do"
    return Finding(
        Limiter.LOAD,
        f"steps took {percent(facts.busy)} of the time, and {facts.running:.1f} requests ran on average",
        "send more at the same time",
        f"the engine waits for requests and could do {more}; what clients wait for beyond these figures lies between"
        " them and the server",
    )


def _throttled(facts: Facts) -> Finding:
    return Finding(
        Limiter.CPU,
        f"the container's CPU limit stopped it in {percent(facts.throttled)} of the scheduler's periods",
        "raise resources.limits.cpu, or lower --threads to what it grants",
        "no step stands still until the next period begins, up to 0.1 s each time",
    )


def _blocks(facts: Facts) -> Finding:
    waiting = facts.waiting.get("kv_full", 0.0)
    fit = (facts.running + waiting) / facts.running if facts.running else 1.0
    effects = [
        *([f"about {fit:.1f} times the blocks take in all that ask now"] if waiting >= 1 else []),
        *(["nothing is computed a second time"] if facts.preempted else []),
    ]
    return Finding(
        Limiter.KV,
        f"{percent(facts.kv_usage)} of the KV blocks are held,"
        f" {counted(facts.preempted, 'request was', 'requests were')} preempted,"
        f" {counted(waiting, 'waits', 'wait')} for blocks",
        "give the cache more memory (--kv-cache-memory-bytes, on a GPU --gpu-memory-utilization) or add replicas;"
        " octavo plan says how many sequences fit",
        " and ".join(effects) or "requests to come find room before others have to give way",
    )


def _queue(facts: Facts, reason: str, waiting: float) -> Finding:
    full = f", and {counted(facts.rejected, 'was', 'were')} refused" if facts.rejected else ""
    evidence = f"{counted(waiting, 'request waits', 'requests wait')} for {reason}{full}"
    if reason == "token_budget":
        return Finding(
            Limiter.QUEUE,
            evidence,
            f"raise --max-num-batched-tokens{_doubled(facts.settings.max_num_batched_tokens)}",
            "prompts are computed in half as many steps, in which streams pause up to twice as long",
        )
    if facts.kv_usage >= KV_ROOM:
        return Finding(
            Limiter.QUEUE,
            f"{evidence}, and {percent(facts.kv_usage)} of the KV blocks are held",
            "add replicas",
            "a second one takes half of them; more at once in this one would wait for blocks instead",
        )
    more = min(waiting, facts.settings.max_num_seqs or waiting)
    return Finding(
        Limiter.QUEUE,
        evidence,
        f"raise --max-num-seqs{_doubled(facts.settings.max_num_seqs)}",
        f"{counted(more, 'of them starts', 'of them start')} at once, with KV blocks to spare; each step takes longer,"
        " and yields more",
    )


def _doubled(now: int | None) -> str:
    return "" if now is None else f" from {now:,} to {2 * now:,}"


def _interpreter(share: float) -> Finding:
    """Never a client that reads slowly: what it does not take waits for it, and the steps do not."""
    return Finding(
        Limiter.HTTP,
        f"for {percent(share)} of the time steps waited for the interpreter, which the reading of other requests kept",
        "add replicas, each of which has an interpreter of its own; a large body keeps it for as long as it takes to"
        " read: --max-body-bytes bounds them",
        f"{1 / (1 - min(share, 0.95)):.1f} times as many tokens a second, where nobody keeps it",
    )


_STEP = {
    Limiter.MEMORY: (
        "use weights of fewer bits (a quantized checkpoint), or let more sequences share each read of them",
        "with these weights at most {times} times as fast; 4 bits are about a quarter of the bytes",
    ),
    Limiter.COMPUTE: (
        "add replicas, or a faster device; prompts that begin alike are computed once if their prefix is cached",
        "on this device at most {times} times as fast",
    ),
    Limiter.OVERHEAD: (
        "see that the compiled kernels serve (the log's first lines) and that nothing else uses the processor, then"
        " send more sequences at once",
        "the machine could do up to {times} times as much",
    ),
}
