"""Who is served before whom, one story each: priorities, their age, cached prefixes, and prefixes being computed."""

from __future__ import annotations

import pytest

from octavo_engine.request import EventKind, FinishReason, PreemptReason, Request, Status, WaitReason
from octavo_engine.scheduling.policy import Policy, make_policy
from octavo_engine.scheduling.scheduler import Scheduler
from scheduling_helpers import SmallPolicy, drain, request, scheduler, shape, step

PRIORITY = Policy(level_seconds=10.0)
CACHE_AWARE = SmallPolicy(window_seconds=10.0)
SYSTEM = list(range(100, 116))  # four blocks that many prompts begin with


def add(made: Scheduler, *items: Request) -> None:
    for item in items:
        made.add(item)


def admitted_order(made: Scheduler, now: float = 0.0, limit: int = 1000) -> list[Request]:
    """Step to the end; the requests in the order of their first admission."""
    order: list[Request] = []
    for tick in range(limit):
        if not made.has_work:
            return order
        batch = step(made, now=now + tick)
        order += [item for item in batch.admitted if not item.num_preemptions]
    raise AssertionError("no end")


def reasons(item: Request) -> list[tuple[EventKind, str]]:
    return [(event.what, event.why) for event in item.events]


class TestPriority:
    def test_the_lowest_number_is_first_and_equals_keep_their_order(self):
        made = scheduler(seqs=1, policy=PRIORITY)
        items = [request(4, max_tokens=2, priority=priority) for priority in (0, 5, -1, 0, -1)]
        add(made, *items)
        assert admitted_order(made) == [items[2], items[4], items[0], items[3], items[1]]

    @pytest.mark.parametrize(("later", "first"), [(9.0, "new"), (11.0, "old")])
    def test_a_level_is_worth_so_many_seconds_of_waiting(self, later: float, first: str):
        made = scheduler(seqs=1, policy=PRIORITY)
        old, new = request(4, priority=1, arrival=0.0), request(4, priority=0, arrival=later)
        add(made, new, old)
        assert admitted_order(made, now=later)[0] is (new if first == "new" else old)

    def test_under_other_policies_a_priority_changes_nothing(self):
        for policy in (make_policy("fcfs", 10.0), make_policy("cache-aware", 10.0)):
            made = scheduler(seqs=1, policy=policy)
            items = [request(4, max_tokens=1, priority=priority) for priority in (3, 0, -3)]
            add(made, *items)
            assert admitted_order(made) == items

    def test_it_takes_the_place_of_the_newest_of_the_lowest_priority(self):
        made = scheduler(seqs=3, policy=PRIORITY)
        low, lower, newest = request(4, priority=1), request(4, priority=2), request(4, priority=2)
        add(made, low, lower, newest)
        step(made)
        urgent = request(4, priority=0)
        add(made, urgent)
        batch = step(made)
        assert batch.preempted == ((newest, PreemptReason.PRIORITY),)
        assert batch.admitted == (urgent,)
        assert newest.events[-1].by == urgent.id
        assert batch.blocked is WaitReason.BATCH_FULL
        drain(made)
        assert all(item.num_output == 8 for item in (low, lower, newest, urgent))

    def test_it_takes_no_more_blocks_than_it_needs(self):
        made = scheduler(blocks=12, policy=PRIORITY)
        small = [request(7, max_tokens=9, priority=1) for _ in range(4)]  # two blocks each, and one to grow
        add(made, *small)
        step(made)
        urgent = request(12, max_tokens=2, priority=0)
        add(made, urgent)
        batch = step(made)
        assert [item for item, _ in batch.preempted] == [small[3]]
        assert urgent.status is Status.RUNNING

    def test_who_loses_blocks_gets_none_in_the_same_step(self):
        made = scheduler(blocks=16, policy=PRIORITY)
        large, small = request(28, max_tokens=8, priority=2), request(8, max_tokens=8, priority=2)
        add(made, large, small)
        step(made)
        urgent = request(40, max_tokens=8, priority=1)  # needs the large one's blocks, which are more than it needs
        add(made, urgent)
        batch = step(made)
        assert [item for item, _ in batch.preempted] == [small, large]
        assert batch.admitted == (urgent,)
        assert batch.blocked is WaitReason.KV_FULL

    def test_nobody_is_preempted_for_one_who_would_not_fit_even_so(self):
        made = scheduler(blocks=16, policy=PRIORITY)
        vip, low = request(24, max_tokens=16, priority=-1), request(8, max_tokens=8, priority=1)
        add(made, vip, low)
        step(made)
        big = request(40, max_tokens=2, priority=0)  # ten blocks; the first alone holds six and may grow
        add(made, big)
        batch = step(made)
        assert not batch.preempted
        assert batch.blocked is WaitReason.KV_FULL
        assert big.status is Status.WAITING

    def test_equal_priorities_preempt_nobody(self):
        made = scheduler(seqs=1, policy=PRIORITY)
        running = request(4, priority=0, arrival=5.0)
        add(made, running)
        step(made)
        add(made, request(4, priority=0, arrival=0.0))  # came first, and was handed in later
        assert not step(made).preempted

    def test_one_brought_forward_by_age_is_not_pushed_out_by_a_newcomer(self):
        made = scheduler(seqs=1, policy=PRIORITY)
        old = request(4, priority=1, arrival=0.0)
        add(made, old)
        step(made, now=20.0)
        add(made, request(4, priority=0, arrival=20.0))
        assert not step(made, now=20.0).preempted

    def test_its_prompt_goes_before_a_long_one_of_a_lower_priority(self):
        made = scheduler(budget=8, policy=PRIORITY)
        long, urgent = request(60, priority=1), request(12, priority=0)
        add(made, long)
        step(made)
        add(made, urgent)
        assert shape(step(made)) == [(urgent.id, 0, 8)]
        assert shape(step(made)) == [(urgent.id, 8, 4), (long.id, 8, 4)]

    def test_a_long_prompt_goes_before_one_of_a_lower_or_of_its_own_priority(self):
        made = scheduler(budget=8, policy=PRIORITY)
        long = request(60, priority=1)
        add(made, long)
        step(made)
        add(made, request(4, priority=2), request(4, priority=1))
        assert shape(step(made)) == [(long.id, 8, 8)]

    def test_blocks_for_growth_come_from_the_lowest_priority_too(self):
        made = scheduler(blocks=8, policy=PRIORITY)
        urgent, low = request(8, max_tokens=16, priority=0), request(8, max_tokens=16, priority=1)
        add(made, low, urgent)
        lost = [pair for _ in range(16) for pair in step(made).preempted]
        assert lost[0] == (low, PreemptReason.KV_FULL)
        assert urgent.num_preemptions == 0

    def test_nobody_starves_behind_a_stream_of_higher_priorities(self):
        """One urgent request arrives with each tick, and each needs two; the other one waits its levels, no longer."""
        made = scheduler(seqs=1, policy=PRIORITY)
        patient = request(4, max_tokens=2, priority=2, arrival=0.0)
        add(made, patient)
        for tick in range(200):
            add(made, request(4, max_tokens=2, priority=0, arrival=float(tick)))
            step(made, now=float(tick))
            if patient.status is Status.FINISHED:
                break
        assert 20 <= tick <= 45

    def test_where_decodes_spend_the_budget_rank_decides(self):
        made = scheduler(budget=2, policy=PRIORITY)
        low = [request(1, max_tokens=30, priority=1) for _ in range(2)]
        add(made, *low)
        step(made)
        urgent = request(3, max_tokens=1, priority=0)
        add(made, urgent)
        assert shape(step(made)) == [(urgent.id, 0, 2)]
        assert {piece.request for piece in step(made).slices} == {urgent, low[0]}

    def test_without_chunking_nobody_is_preempted_for_a_prompt_that_has_no_step_yet(self):
        made = scheduler(budget=8, seqs=3, chunked=False, policy=PRIORITY)
        kept, low = request(4, priority=-1), request(4, priority=1)
        add(made, kept, low)
        step(made)
        made._max_seqs = 2
        add(made, request(8, max_tokens=1, priority=0))
        assert not step(made).preempted


class TestCachedPrefixes:
    def warm(self, **options) -> Scheduler:
        """A scheduler whose cache has SYSTEM."""
        made = scheduler(policy=options.pop("policy", CACHE_AWARE), **options)
        add(made, request([*SYSTEM, 1], max_tokens=1))
        drain(made)
        return made

    def test_the_longest_is_first_and_equals_keep_their_order(self):
        made = self.warm(seqs=1)
        none, half, whole, other = request(20), request([*SYSTEM[:8], 7]), request([*SYSTEM, 7]), request(20)
        add(made, none, half, whole, other)
        assert admitted_order(made) == [whole, half, none, other]

    def test_fcfs_does_not_look(self):
        made = self.warm(seqs=1, policy=Policy())
        none, whole = request(20), request([*SYSTEM, 7])
        add(made, none, whole)
        assert admitted_order(made) == [none, whole]

    @pytest.mark.parametrize(("later", "first"), [(10.0, "whole"), (10.1, "none")])
    def test_nobody_is_overtaken_by_one_who_came_too_late(self, later: float, first: str):
        made = self.warm(seqs=1)
        none, whole = request(20, arrival=0.0), request([*SYSTEM, 7], arrival=later)
        add(made, none, whole)
        assert admitted_order(made, now=later)[0] is (whole if first == "whole" else none)

    def test_nobody_starves_behind_a_stream_of_hits(self):
        made = self.warm(seqs=1)
        patient = request(20, max_tokens=2, arrival=0.0)
        add(made, patient)
        for tick in range(200):
            add(made, *(request([*SYSTEM, 500 + tick], max_tokens=2, arrival=float(tick)) for _ in range(2)))
            step(made, now=float(tick))
            if patient.status is Status.FINISHED:
                break
        assert 10 < tick <= 50  # those that came within ten seconds of it: two a tick, of two ticks each

    def test_one_who_came_first_but_is_handed_in_last_still_has_a_turn(self):
        made = scheduler(policy=SmallPolicy(window_seconds=0.0))
        late, early = request(4, arrival=50.0), request(4, arrival=1.0)
        add(made, late, early)
        drain(made)
        assert {late.status, early.status} == {Status.FINISHED}

    def test_what_becomes_cached_while_it_waits_moves_it_forward(self):
        made = scheduler(seqs=1, policy=CACHE_AWARE)
        first, other, sibling = request([*SYSTEM, 1], max_tokens=2), request(20), request([*SYSTEM, 2])
        add(made, first, other, sibling)
        assert admitted_order(made) == [first, sibling, other]

    def test_what_was_evicted_while_it_waits_moves_it_back(self):
        made = self.warm(seqs=1, blocks=8)
        greedy = request(4, max_tokens=28)  # takes all blocks, SYSTEM's too
        add(made, greedy)
        step(made)
        plain, whole = request(20, max_tokens=1), request([*SYSTEM, 7], max_tokens=1)
        add(made, plain, whole)
        step(made)
        assert made._waiting.head(0.0) is whole
        assert admitted_order(made) == [plain, whole]

    def test_a_preempted_request_resumes_before_all_others(self):
        made = scheduler(seqs=2, blocks=10, policy=CACHE_AWARE)
        old, new = request([*SYSTEM, 1], max_tokens=16), request(8, max_tokens=16)  # the older one keeps SYSTEM cached
        add(made, old, new)
        while not new.num_preemptions:
            step(made)
        hit = request([*SYSTEM, 9], max_tokens=1)
        add(made, hit)
        order = []
        while made.has_work:
            order += step(made).admitted
        assert order.index(new) < order.index(hit)


class TestPendingPrefixes:
    def siblings(self, *, budget: int = 8, **options) -> tuple[Scheduler, Request, Request]:
        """The second waits while the first computes SYSTEM, of which it has done two blocks."""
        made = scheduler(budget=budget, policy=options.pop("policy", CACHE_AWARE), **options)
        first, second = request([*SYSTEM, 1, 2]), request([*SYSTEM, 3, 4])
        add(made, first, second)
        step(made)
        return made, first, second

    def test_a_sibling_waits_for_the_first_and_computes_its_own_part_only(self):
        made, first, second = self.siblings(budget=64)
        assert second.status is Status.WAITING
        assert made.stats().waiting[WaitReason.PREFIX_PENDING] == 1
        assert not made._waiting._fillers  # though the first still runs
        batch = step(made)
        assert (second.id, 16, 2) in shape(batch)
        assert second.num_cached == 16
        assert (EventKind.WAITING, WaitReason.PREFIX_PENDING) in reasons(second)
        assert second.events[-3].by == first.id

    def test_it_waits_until_all_that_is_shared_is_there(self):
        made, _, second = self.siblings()
        for _ in range(2):
            assert made.stats().waiting[WaitReason.PREFIX_PENDING] == (second.status is Status.WAITING)
            step(made)
        assert second.num_cached == 16
        assert reasons(second).count((EventKind.WAITING, WaitReason.PREFIX_PENDING)) == 1

    def test_others_pass_meanwhile(self):
        made, _, second = self.siblings(budget=12)
        stranger = request(3)
        add(made, stranger)
        assert step(made).admitted == (stranger,)
        assert second.status is Status.WAITING

    @pytest.mark.parametrize("policy", [Policy(), PRIORITY])
    def test_other_policies_keep_their_order(self, policy: Policy):
        _, _, second = self.siblings(budget=64, policy=policy)
        assert second.status is Status.RUNNING

    def test_when_the_first_is_aborted_the_second_takes_over(self):
        made, first, second = self.siblings()
        made.finish(first, FinishReason.ABORT, 1.0)
        batch = step(made)
        assert shape(batch) == [(second.id, 8, 8)]
        assert second.num_cached == 8

    def test_when_the_first_is_preempted_it_resumes_before_those_who_wait_for_it(self):
        made = scheduler(blocks=12, budget=8, policy=CACHE_AWARE)
        old = request(8, max_tokens=40)
        add(made, old)
        for _ in range(2):
            step(made)
        first, second = request([*SYSTEM, 1, 2], max_tokens=9), request([*SYSTEM, 3, 4], max_tokens=9)
        add(made, first, second)
        step(made)
        assert made.stats().waiting[WaitReason.PREFIX_PENDING] == 1
        made._preempt(first, _plan(made), PreemptReason.KV_FULL, by=old)
        drain(made)
        assert {first.num_output, second.num_output} == {9}

    @pytest.mark.parametrize(("shared", "waits"), [(8, True), (4, False)])
    def test_less_than_half_of_what_is_missing_is_not_waited_for(self, shared: int, waits: bool):
        made = scheduler(budget=64, policy=CACHE_AWARE)
        first, second = request(17), request(1)
        second.tokens[:] = [*first.tokens[:shared], *range(9000, 9008)]
        second.num_prompt = len(second.tokens)
        add(made, first, second)
        step(made)
        assert (second.status is Status.WAITING) == waits

    def test_less_than_the_least_is_not_waited_for(self):
        policy = SmallPolicy(window_seconds=10.0, min_shared_tokens=20)
        _, _, second = self.siblings(budget=64, policy=policy)
        assert second.status is Status.RUNNING

    def test_namespaces_do_not_wait_for_each_other(self):
        made = scheduler(budget=64, policy=CACHE_AWARE)
        first, second = request([*SYSTEM, 1], namespace="a"), request([*SYSTEM, 2], namespace="b")
        add(made, first, second)
        step(made)
        assert second.status is Status.RUNNING

    def test_an_aborted_sibling_leaves_nothing_behind(self):
        made, _, second = self.siblings()
        made.finish(second, FinishReason.ABORT, 1.0)
        assert made.stats().waiting[WaitReason.PREFIX_PENDING] == 0
        drain(made)
        queue = made._waiting
        assert not any((queue._watchers, queue._fillers, queue._places, queue._woken, queue._filling))

    def test_where_nobody_runs_it_looks_as_long_as_it_takes(self):
        made = scheduler(blocks=5, policy=SmallPolicy(window_seconds=10.0, looks=1))
        add(made, request([*SYSTEM, 1], max_tokens=1))
        drain(made)
        add(made, *(request([*SYSTEM, number], max_tokens=1) for number in range(5)))
        made._waiting.head(0.0)
        made.flush()  # all that they were known to have cached
        assert step(made).admitted

    def test_a_step_looks_at_so_many_and_the_next_at_the_rest(self):
        made = scheduler(budget=64, seqs=64, blocks=400, policy=SmallPolicy(window_seconds=10.0, looks=4))
        items = [request([*SYSTEM, 1000 + number], max_tokens=2) for number in range(20)]
        add(made, *items)
        step(made)
        assert made._waiting.num_pending == 4
        assert drain(made) < 20
        assert sum(item.num_cached for item in items) == 19 * len(SYSTEM)


def _plan(made: Scheduler):
    from octavo_engine.scheduling.plan import Plan

    return Plan(made._budget, 0.0, 0)
