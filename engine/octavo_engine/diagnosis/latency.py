"""Why answers come late though an engine works as fast as it can: prefixes, long prompts, large batches. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from octavo_engine.counted import counted
from octavo_engine.diagnosis.facts import Facts
from octavo_engine.diagnosis.findings import Finding, Limiter, percent, span

# So few that a single request would speak for all.
LEAST_FIRST_TOKENS, LEAST_TOKENS, LEAST_LOOKED_UP = 5, 20, 500
SELDOM_FOUND = 0.2
FAR_APART, LONGER = 5.0, 4.0  # P99 over median, of first tokens and of prompts' lengths: rarely chance
IN_THE_WAY = 2.0  # times a decode's duration, from where on a step with prompts in it is what is felt
INTER_TOKEN_SECONDS = 0.2  # slower than this, a person reads faster; the alerts' objective, too


def late(facts: Facts, inter_token_seconds: float = INTER_TOKEN_SECONDS) -> Iterator[Finding]:
    """Each cause that the figures speak for. `inter_token_seconds`: what 99 of 100 gaps between tokens should keep."""
    yield from _prefixes(facts)
    yield from _long_prompts(facts)
    gaps = facts.inter_token
    if gaps is not None and gaps.count >= LEAST_TOKENS and gaps.most > inter_token_seconds:
        yield from _slow_steps(facts, f"P99 between two tokens is {span(gaps.most)}, above {span(inter_token_seconds)}")


def _prefixes(facts: Facts) -> Iterator[Finding]:
    """Computing prompts takes most of the time, and next to none of their tokens is found."""
    looked_up = facts.found + facts.missed
    if looked_up < LEAST_LOOKED_UP or facts.prompt_share < 0.5 or facts.found >= SELDOM_FOUND * looked_up:
        return
    seen = (
        f"steps with prompts took {percent(facts.prompt_share)} of the steps' time, and"
        f" {counted(facts.found, *(f'of {looked_up:,.0f} prompt tokens {verb} found' for verb in ('was', 'were')))}"
    )
    if facts.settings.prefix_caching is False:
        advice = "start it with --enable-prefix-caching"
        effect = "what prompts begin with in common, such as a system prompt, is computed once"
    elif facts.evicted:
        seen += f"; {counted(facts.evicted, 'cached block was', 'cached blocks were')} given up for others"
        advice = "give the cache more memory (--kv-cache-memory-bytes, on a GPU --gpu-memory-utilization)"
        effect = "prefixes are still there when they are asked for again"
    else:
        advice = (
            "if prompts begin alike, put what they share first, and where several API keys are one tenant's, set"
            " --prefix-cache-scope=server"
        )
        effect = "a token that is found is not computed: the first one comes earlier by as much"
    yield Finding(Limiter.PREFIX, seen, advice, effect)


def _long_prompts(facts: Facts) -> Iterator[Finding]:
    first, prompts = facts.first_token, facts.prompts
    if first is None or prompts is None or first.count < LEAST_FIRST_TOKENS:
        return
    if first.most < FAR_APART * first.half or prompts.most < LONGER * prompts.half:
        return
    if facts.settings.chunked is False:
        advice = "start it with --enable-chunked-prefill"
        effect = "a long prompt shares its steps with others instead of holding them up"
    else:
        advice = f"bound them, by --max-prompt-tokens below {prompts.most:,.0f}"
        effect = "longer ones are refused at once, and nobody stands behind them"
    yield Finding(
        Limiter.PROMPTS,
        f"the first token came after {span(first.half)} at the median and {span(first.most)} at P99, and prompts had"
        f" {counted(prompts.half, 'token')} at the median and {prompts.most:,.0f} at P99",
        advice,
        effect,
    )


def _slow_steps(facts: Facts, seen: str) -> Iterator[Finding]:
    """Gaps follow the steps: either prompts' chunks are in them, or many sequences."""
    mixed, decode = facts.step_mean("mixed"), facts.step_mean("decode")
    if mixed is not None and mixed > IN_THE_WAY * (decode or 0.0):
        now = facts.settings.max_num_batched_tokens
        yield Finding(
            Limiter.BATCH,
            f"{seen}: steps with prompts in them take {span(mixed)}{f', decodes {span(decode)}' if decode else ''}",
            f"lower --max-num-batched-tokens{f' from {now:,} to {now // 2:,}' if now else ''}",
            "such a step takes about half as long, and a long prompt twice as many of them",
        )
    elif decode is not None and facts.running >= 2:
        shares = facts.shares["decode"]
        gain = (
            "about half as long"
            if shares["compute"] > shares["memory"]
            else "less, down to what reading the weights takes"
        )
        yield Finding(
            Limiter.BATCH,
            f"{seen}: a decode of {counted(facts.running, 'sequence')} takes {span(decode)}",
            f"lower --max-num-seqs to {max(1, round(facts.running / 2))}",
            f"a step of half as many takes {gain}, and the others wait or go to another replica",
        )
