"""Cached prefixes are found by their tokens, not by what these hash to: with a hash that is the same for everything,
nobody gets a block that holds anything else."""

from __future__ import annotations

import random

import pytest

from octavo_engine.request import Request
from octavo_engine.scheduling import prefix_cache
from octavo_engine.scheduling.policy import Policy
from octavo_engine.scheduling.scheduler import Scheduler
from scheduling_helpers import BLOCK, SmallPolicy, drain, request, run, scheduler

POLICIES = {"fcfs": Policy(), "cache-aware": SmallPolicy(window_seconds=10.0)}
STEMS = [[1] * 12, [1] * 4 + [2] * 8, [2] * 12, [3, 1] * 8]
SEEDS = 40

Written = dict[int, tuple[str, tuple[int, ...]]]


class Colliding(int):
    """A token that every other one collides with."""

    def __hash__(self) -> int:
        return 0


def asked(draw: random.Random) -> Request:
    tokens = [*draw.choice(STEMS), *(draw.randint(1, 3) for _ in range(draw.randint(0, 6)))]
    namespace = draw.choice(["one", "two"])
    return request([Colliding(token) for token in tokens], max_tokens=draw.randint(1, 6), namespace=namespace)


def found_in(blocks: list[int], written: Written) -> list[tuple[str, tuple[int, ...]]]:
    return [written[block] for block in blocks]


def step(made: Scheduler, written: Written) -> int:
    """One step; how many cached tokens its new requests found, each of them in a block that holds just those."""
    batch = made.schedule(0.0)
    found = 0
    for item in batch.admitted:
        whole = item.num_cached // BLOCK
        expected = [(item.namespace, tuple(item.tokens[: (index + 1) * BLOCK])) for index in range(whole)]
        assert found_in(item.blocks[:whole], written) == expected
        found += item.num_cached
    for piece in batch.slices:
        item, end = piece.request, piece.start + piece.count
        for index in range(piece.start // BLOCK, end // BLOCK):
            written[item.blocks[index]] = (item.namespace, tuple(item.tokens[: (index + 1) * BLOCK]))
    run(made, batch, token=Colliding(7))
    return found


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_nobody_gets_a_block_that_holds_anything_else(policy: Policy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prefix_cache, "hash", lambda _: 0, raising=False)
    found = 0
    for seed in range(SEEDS):
        draw, written = random.Random(seed), Written()
        made = scheduler(blocks=draw.randint(12, 32), budget=draw.randint(6, 40), seqs=4, policy=policy)
        for _ in range(30):
            if draw.random() < 0.5:
                made.add(asked(draw))
            if made.has_work:
                found += step(made, written)
        drain(made)
        assert made.cache.num_used == 0
    assert found > 10 * SEEDS, "prefixes were found"


def test_the_tokens_do_collide():
    assert hash(Colliding(1)) == hash(Colliding(2))
    assert hash((Colliding(1), Colliding(2))) == hash((Colliding(3), Colliding(4)))
    assert Colliding(1) == 1 != Colliding(2)
