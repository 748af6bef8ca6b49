"""What one tenant asked shows in nothing that another can measure: not in hits, steps, places in a queue or evictions.

Times on a machine are noise; what they are made of is not. So two worlds are compared, step by step: in one, a stranger
asks what somebody else's prefix cache holds, in the other, what nobody ever asked.
"""

from __future__ import annotations

import random

import pytest

from octavo_engine.scheduling.policy import Policy
from octavo_engine.scheduling.scheduler import Scheduler
from scheduling_helpers import SmallPolicy, request, scheduler, step

PAIRS = 200
POLICIES = {"fcfs": Policy(), "cache-aware": SmallPolicy(window_seconds=10.0)}

Trace = list[tuple[tuple[tuple[int, int], ...], int, int, int]]


def trace(made: Scheduler) -> Trace:
    """Everything that a step's time is made of, until nothing is left to do."""
    seen = []
    while made.has_work:
        batch = step(made)
        sizes = tuple((piece.start, piece.count) for piece in batch.slices)
        seen.append((sizes, len(batch.admitted), len(batch.preempted), batch.evicted_blocks))
    return seen


def asked_after(seed: int, policy: Policy, *, known: bool, namespace: str) -> Trace:
    """A stranger's two questions after a victim's, beside others of both; `known`: they begin as the victim's did."""
    draw = random.Random(seed)
    made = scheduler(blocks=draw.randint(24, 64), budget=draw.randint(6, 40), seqs=draw.randint(1, 4), policy=policy)
    length = draw.randint(5, 40)
    secret, other = list(range(length)), list(range(5000, 5000 + length))
    for number in range(draw.randint(1, 3)):
        made.add(request([*secret, 900 + number], max_tokens=2, namespace="victim"))
    trace(made)
    made.add(request(draw.randint(4, 30), max_tokens=draw.randint(1, 9), namespace="victim"))
    for number in range(2):
        made.add(request([*(secret if known else other), 700 + number], max_tokens=3, namespace=namespace))
        made.add(request(draw.randint(4, 20), max_tokens=2, namespace="stranger"))
    return trace(made)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_stranger_cannot_tell_what_was_asked(policy):
    for seed in range(PAIRS):
        known = asked_after(seed, policy, known=True, namespace="stranger")
        assert known == asked_after(seed, policy, known=False, namespace="stranger"), f"seed {seed}"


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_victim_could(policy):
    """Were the two in one namespace, nearly every pair would tell."""
    told = sum(
        asked_after(seed, policy, known=True, namespace="victim")
        != asked_after(seed, policy, known=False, namespace="victim")
        for seed in range(PAIRS)
    )
    assert told > 0.8 * PAIRS
