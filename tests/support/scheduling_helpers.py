"""Small makers for scheduler tests: requests of made-up tokens, and a scheduler over a tiny cache."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

from octavo_engine.batch import Batch
from octavo_engine.request import FinishReason, Request, SamplingParams, Status
from octavo_engine.scheduling.cache_aware import CacheAwareQueue
from octavo_engine.scheduling.drafts import Drafter
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.pace import Pace, Pacer
from octavo_engine.scheduling.policy import Policy
from octavo_engine.scheduling.scheduler import Scheduler
from octavo_engine.scheduling.waiting import RankedQueue, WaitingQueue

BLOCK = 4
_ids = count()


def request(tokens: int | list[int], *, max_tokens: int = 8, **fields: Any) -> Request:
    """A request of `tokens` distinct made-up tokens, or of just these tokens."""
    number = next(_ids)
    prompt = tokens if isinstance(tokens, list) else [1_000_000 + 1000 * number + i for i in range(tokens)]
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
    return Request(id=f"r{number}", tokens=list(prompt), params=params, **{"arrival": 0.0} | fields)


@dataclass(frozen=True, slots=True)
class SmallPolicy(Policy):
    """A policy whose limits are as small as these tests' prompts."""

    min_shared_tokens: int = BLOCK
    looks: int = 256

    def make_queue(self, cache: KVCache) -> WaitingQueue:
        if self.window_seconds is None:
            return RankedQueue()
        limits = {"min_shared_tokens": self.min_shared_tokens, "looks": self.looks}
        return CacheAwareQueue(cache, self.window_seconds, **limits)


def scheduler(
    blocks: int = 64,
    *,
    budget: int = 32,
    seqs: int = 8,
    chunked: bool = True,
    caching: bool = True,
    policy: Policy | None = None,
    drafter: Drafter | None = None,
):
    """A scheduler over `blocks` blocks of 4 tokens; its cache is at `.cache`."""
    cache = KVCache(blocks, BLOCK, enable_prefix_caching=caching)
    made = Scheduler(
        cache,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        enable_chunked_prefill=chunked,
        policy=policy or Policy(),
        drafter=drafter,
    )
    made.cache = cache  # type: ignore[attr-defined]
    return made


class FreeOfCharge(Pacer):
    """Every guess is worth its row, and is made from the first step on."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.steps = self.drafted = 0

    @property
    def pace(self) -> Pace:
        return Pace(equal_tokens=1e9, slowdown=2.0)

    def observe(self, batch: Batch, seconds: float) -> None:
        self.steps += 1
        self.drafted += batch.num_drafted


def run(made: Scheduler, batch: Batch, *, token: int = 7, true: int = 0) -> None:
    """Pretend to compute a batch: record it, append `token` where one is sampled, end who is done.

    `true`: so many of the guesses of each draft come true before.
    """
    sampling = batch.sampling
    made.computed(batch)
    for piece in sampling:
        for guess in piece.draft[:true]:
            piece.request.tokens.append(guess)
            made.come_true(piece.request)
        piece.request.tokens.append(token)
        if piece.request.num_tokens >= piece.request.max_total_tokens:
            made.finish(piece.request, FinishReason.LENGTH, 0.0)


def step(made: Scheduler, *, token: int = 7, now: float = 0.0) -> Batch:
    """One step, start to end."""
    batch = made.schedule(now)
    run(made, batch, token=token)
    return batch


def drain(made: Scheduler, limit: int = 10_000) -> int:
    """Step until nothing is left; the number of steps."""
    for steps in range(limit):
        if not made.has_work:
            return steps
        assert step(made).slices, "a step without work while requests are live"
    raise AssertionError("the scheduler does not come to an end")


def shape(batch: Batch) -> list[tuple[str, int, int]]:
    """A batch as (id, start, count)."""
    return [(piece.request.id, piece.start, piece.count) for piece in batch.slices]


def check_accounting(made: Scheduler, live: list[Request]) -> None:
    """No block lost, none shared wrongly: free + cached + used == total, and every block's users are just its
    holders."""
    cache: KVCache = made.cache  # type: ignore[attr-defined]
    pool, tree = cache._pool, cache._prefixes
    holders: dict[int, list[Request]] = {}
    for item in live:
        assert (item.status is Status.RUNNING) == bool(item.blocks) or item.num_computed == 0
        assert item.num_computed <= len(item.blocks) * cache.block_size
        assert len(set(item.blocks)) == len(item.blocks)
        for block in item.blocks:
            holders.setdefault(block, []).append(item)
    for block in range(pool.total):
        assert pool.users(block) == len(holders.get(block, []))
    free, in_tree = set(pool._free), set(tree.blocks()) if tree else set()
    assert len(free) == len(pool._free)
    assert not free & in_tree
    assert not free & set(holders)
    assert free | in_tree | set(holders) == set(range(pool.total))
    assert cache.num_free + cache.num_cached + cache.num_used == cache.num_blocks
    assert cache.num_used == len(holders)
    assert cache.held_slots == sum(len(item.blocks) for item in live) * cache.block_size
    assert cache.stored_tokens == sum(item.num_computed for item in live)
    check_sharing(holders, cache.block_size)
    if tree:
        check_tree(tree, set(holders))
    check_queue(made, live)


def check_queue(made: Scheduler, live: list[Request]) -> None:
    """Who runs is in order of rank, who needs a prompt is known, and who waits for a prefix has someone to wait for."""
    running = [item for item in live if item.status is Status.RUNNING]
    assert made._running == sorted(running, key=lambda item: item.rank)
    assert {item for item in running if item.num_missing > 1} <= set(made._prefilling) <= set(running)
    assert len(made._waiting) == len(live) - len(running)
    if isinstance(queue := made._waiting, CacheAwareQueue):
        pending = [place for place in queue._places.values() if place.pending]
        assert len(pending) == queue.num_pending
        for place in pending:
            woken = place.request.id in queue._woken
            assert woken or queue._fillers[place.watched].request.status is Status.RUNNING
        assert all(place.request.status is Status.RUNNING for place in queue._fillers.values())
        assert queue._filling.keys() == {item.id for item in running}
        assert len(queue._candidates) + len(queue._later) + len(pending) == len(queue)
        watched = {place.watched for place in queue._places.values()}
        assert queue._watchers.keys() <= watched


def check_sharing(holders: dict[int, list[Request]], size: int) -> None:
    """A block shared by several requests holds the same tokens, at the same place, of the same namespace for all."""
    for block, items in holders.items():
        contents = set()
        for item in items:
            index = item.blocks.index(block)
            contents.add((item.namespace, index, tuple(item.tokens[: (index + 1) * size]) if len(items) > 1 else ()))
        assert len(contents) == 1


def check_tree(tree, held: set[int]) -> None:
    """Idle nodes are just those that nobody holds, and have idle children only; every idle node can be evicted."""
    idle = [node for node in tree._nodes.values() if node.idle]
    assert len(idle) == tree.num_idle
    for node in tree._nodes.values():
        assert node.idle == (node.block not in held)
        assert not node.idle or all(child.idle for child in node.children.values())
        assert node.parent.children[node.tokens] is node
        assert tree._by_key[node.key] is node
    assert len(tree._by_key) == len(tree._nodes)
