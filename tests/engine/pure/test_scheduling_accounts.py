"""The sums that decisions rest on: what a step may still have, and what would come free."""

from __future__ import annotations

import pytest

from octavo_engine.request import FinishReason, PreemptReason
from octavo_engine.scheduling.kv_cache import Prefix, Returns
from octavo_engine.scheduling.plan import Plan
from octavo_engine.scheduling.prefix_cache import PrefixCache
from scheduling_helpers import request, scheduler, step


class TestPlan:
    def plan(self) -> Plan:
        plan = Plan(100, 0.0, 0)
        plan.limit_prompts(30)
        return plan

    def test_prompts_have_their_own_limit_within_the_budget(self):
        plan = self.plan()
        assert (plan.budget, plan.prompt_budget) == (100, 30)
        plan.add(request(20), 20, 20)
        assert (plan.budget, plan.prompt_budget) == (80, 10)
        for _ in range(75):
            plan.add_single(request(1))
        assert (plan.budget, plan.prompt_budget) == (5, 5)

    @pytest.mark.parametrize(("count", "missing"), [(20, 20), (1, 20), (1, 1)])
    def test_what_a_victim_had_is_there_again(self, count: int, missing: int):
        plan, victim = self.plan(), request(missing)
        plan.add(victim, count, missing)
        plan.take_back(victim, PreemptReason.KV_FULL)
        assert (plan.budget, plan.prompt_budget) == (100, 30)
        batch = plan.batch(0, None)
        assert batch.slices == ()
        assert batch.preempted == ((victim, PreemptReason.KV_FULL),)

    def test_single_tokens_come_first_and_everything_is_counted(self):
        plan = self.plan()
        items = [request(5), request(1), request(9)]
        for item, count in zip(items, (5, 1, 9), strict=True):
            plan.add(item, count, count)
        batch = plan.batch(3, None)
        assert [piece.request for piece in batch.slices] == [items[1], items[0], items[2]]
        assert (batch.num_singles, batch.num_tokens, batch.evicted_blocks) == (1, 15, 3)


class TestReturns:
    def test_a_shared_block_comes_free_with_its_last_holder(self):
        made, prompt = scheduler(), list(range(100, 112))
        first, second = request([*prompt, 1]), request([*prompt, 2])  # three blocks in common, and one each
        made.add(first)
        step(made)
        made.add(second)
        step(made)
        returns = Returns(made.cache)
        returns.add(first)
        assert returns.num_blocks == 1
        returns.add(second)
        assert returns.num_blocks == 5
        assert made.cache.num_used == 5

    def test_what_somebody_has_a_use_for_does_not_count(self):
        made, item = scheduler(), request(12)
        made.add(item)
        step(made)
        returns = Returns(made.cache, kept=item.blocks[:2])
        returns.add(item)
        assert returns.num_blocks == len(item.blocks) - 2


class TestCache:
    @pytest.mark.parametrize(("tokens", "keys"), [(3, 0), (4, 0), (5, 1), (8, 1), (9, 2)])
    def test_there_is_a_key_for_each_block_that_could_be_a_hit(self, tokens: int, keys: int):
        cache = scheduler().cache
        assert len(cache.keys(request(tokens))) == keys

    def test_keys_are_counted_as_far_as_blocks_are_cached(self):
        made, prompt = scheduler(), list(range(100, 116))
        keys = made.cache.keys(request([*prompt, 1]))
        assert made.cache.count(keys) == 0
        made.add(request(prompt[:9], max_tokens=1))
        step(made)
        assert made.cache.count(keys) == 2
        made.flush()
        assert made.cache.count(keys) == 0

    def test_keys_of_other_namespaces_and_other_beginnings_differ(self):
        cache, prompt = scheduler().cache, list(range(100, 112))
        mine, theirs = cache.keys(request(prompt)), cache.keys(request(prompt, namespace="theirs"))
        moved = cache.keys(request([7, 7, 7, 7, *prompt[4:]]))
        assert not set(mine) & (set(theirs) | set(moved))

    def test_a_namespace_is_forgotten_with_its_last_block_and_may_come_again(self):
        tree = PrefixCache(2)
        for block in range(3):
            tree.insert(f"salt {block}", None, (1, 2), block)
            tree.set_idle(block)
        assert [tree.evict(), tree.evict()] == [0, 1]
        assert [tree.find(f"salt {block}", (1, 2)) for block in range(3)] == [[], [], [2]]
        assert len(tree._roots) == len(tree._namespaces) == 1, "a salt for each request would fill the memory"
        tree.insert("salt 0", None, (1, 2), 0)
        assert tree.find("salt 0", (1, 2)) == [0]

    def test_an_attached_prefix_counts_as_stored(self):
        made, prompt = scheduler(), list(range(100, 112))
        made.add(request(prompt, max_tokens=1))
        step(made)
        item, cache = request([*prompt, 1]), made.cache
        cache.attach(item, cache.find_prefix(item))
        assert (cache.held_slots, cache.stored_tokens) == (12, 12)
        cache.release(item)
        assert (cache.held_slots, cache.stored_tokens) == (0, 0)

    def test_without_a_cache_there_is_no_prefix(self):
        assert scheduler(caching=False).cache.find_prefix(request(9)) == Prefix()


def test_an_aborted_prompt_is_not_waited_for():
    made, item = scheduler(budget=8), request(20)
    made.add(item)
    step(made)
    assert made.stats().running_prompt_tokens == 12
    made.finish(item, FinishReason.ABORT, 0.0)
    assert made.stats().running_prompt_tokens == 0
