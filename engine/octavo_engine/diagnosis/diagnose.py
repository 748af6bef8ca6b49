"""The findings of a look at an engine, in the order in which to act on them. Pure."""

from __future__ import annotations

from octavo_engine.diagnosis.facts import Facts
from octavo_engine.diagnosis.findings import Finding
from octavo_engine.diagnosis.latency import INTER_TOKEN_SECONDS, late
from octavo_engine.diagnosis.throughput import around, nothing_to_do, within


def diagnose(facts: Facts, inter_token_seconds: float = INTER_TOKEN_SECONDS) -> list[Finding]:
    """All that limits, the most important first; never empty.

    What keeps requests waiting comes before what makes answers late, and that before what bounds each step: the last is
    true of every engine that works, and only worth changing when nothing before it is.
    """
    limits, steps = list(around(facts)), list(within(facts))
    idle = [] if limits or steps else [nothing_to_do(facts)]
    return [*limits, *late(facts, inter_token_seconds), *steps, *idle]
