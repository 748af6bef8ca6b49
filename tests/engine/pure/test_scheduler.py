"""What the scheduler decides, one story each."""

from __future__ import annotations

from octavo_engine.request import FinishReason, PreemptReason, Status, WaitReason
from scheduling_helpers import BLOCK, drain, request, scheduler, shape, step


def test_a_prompt_is_computed_and_its_last_token_samples():
    made, item = scheduler(), request(10, max_tokens=3)
    made.add(item)
    batch = made.schedule(1.0)
    assert shape(batch) == [(item.id, 0, 10)]
    assert batch.kind == "prefill"
    assert [piece.samples for piece in batch.slices] == [True]
    assert len(item.blocks) == 3


def test_blocks_are_taken_on_demand():
    made, item = scheduler(), request(4, max_tokens=9)
    made.add(item)
    held = []
    while made.has_work:
        step(made)
        held.append(len(item.blocks))
    assert held == [1, 2, 2, 2, 2, 3, 3, 3, 0]


def test_a_long_prompt_is_cut_to_the_budget_and_decodes_come_first():
    made, short, long = scheduler(budget=8), request(3), request(30)
    made.add(short)
    step(made)
    made.add(long)
    batch = made.schedule(0.0)
    assert shape(batch) == [(short.id, 3, 1), (long.id, 0, 7)]
    assert batch.kind == "mixed"
    assert [piece.samples for piece in batch.slices] == [True, False]


def test_without_chunking_a_prompt_waits_for_a_whole_step():
    made, first, second = scheduler(budget=16, chunked=False), request(10), request(10)
    made.add(first)
    made.add(second)
    assert shape(made.schedule(0.0)) == [(first.id, 0, 10)]
    assert made.stats().waiting[WaitReason.TOKEN_BUDGET] == 1


def test_first_come_first_served():
    made, items = scheduler(budget=8), [request(8) for _ in range(3)]
    for item in items:
        made.add(item)
    order = [piece.request.id for _ in range(3) for piece in step(made).slices if piece.start == 0]
    assert order == [item.id for item in items]


def test_a_waiting_request_says_why():
    made = scheduler(blocks=8, budget=16, seqs=2)
    made.add(request(4))
    assert made.stats().waiting[WaitReason.NEW] == 1
    step(made)
    made.add(request(28, max_tokens=2))
    step(made)
    assert made.stats().waiting == {
        WaitReason.NEW: 0,
        WaitReason.TOKEN_BUDGET: 0,
        WaitReason.KV_FULL: 1,
        WaitReason.BATCH_FULL: 0,
        WaitReason.PREFIX_PENDING: 0,
    }


def test_what_a_prompt_still_needs_is_not_given_to_another():
    made, long, other = scheduler(blocks=12, budget=8), request(40, max_tokens=4), request(12)
    made.add(long)
    step(made)
    made.add(other)
    assert step(made).blocked is WaitReason.KV_FULL  # ten blocks are free, of which the first needs eight
    while long.status is not Status.FINISHED:
        assert step(made).preempted == ()


def test_a_full_batch_is_a_reason():
    made = scheduler(seqs=1)
    for _ in range(3):
        made.add(request(4))
    step(made)
    assert made.stats().waiting[WaitReason.BATCH_FULL] == 2


def test_a_prompt_is_found_while_its_first_request_still_runs():
    made, prompt = scheduler(), list(range(100, 112))
    first, second = request(prompt), request([*prompt, 5, 6])
    made.add(first)
    step(made)
    made.add(second)
    step(made)
    assert second.num_cached == 12
    assert second.blocks[:3] == first.blocks[:3]


def test_a_full_hit_still_computes_one_token():
    made, prompt = scheduler(), list(range(100, 108))
    made.add(request(prompt, max_tokens=1))
    drain(made)
    again = request(prompt)
    made.add(again)
    batch = made.schedule(0.0)
    assert shape(batch) == [(again.id, 4, 4)]


def test_namespaces_do_not_share():
    made, prompt = scheduler(), list(range(100, 112))
    made.add(request(prompt, max_tokens=1, namespace="one"))
    drain(made)
    other = request(prompt, namespace="two")
    made.add(other)
    step(made)
    assert other.num_cached == 0


def test_equal_prompts_computed_side_by_side_end_up_in_the_same_blocks():
    made, prompt = scheduler(), list(range(100, 108))
    first, second = request(prompt), request(prompt)
    made.add(first)
    made.add(second)
    step(made)
    assert first.blocks[:2] == second.blocks[:2]
    assert made.cache.num_used == 2 + 0 * BLOCK


def test_the_newest_gives_way_and_the_oldest_progresses():
    made = scheduler(blocks=6, seqs=4)
    old, new = request(8, max_tokens=16), request(8, max_tokens=16)
    made.add(old)
    made.add(new)
    preempted = []
    while old.status is not Status.FINISHED:
        preempted += [(victim.id, why) for victim, why in step(made).preempted]
    assert preempted == [(new.id, PreemptReason.KV_FULL)]
    assert old.num_preemptions == 0
    assert old.num_output == 16
    drain(made)
    assert new.num_output == 16


def test_a_preempted_request_returns_to_the_head_and_finds_its_full_blocks():
    made = scheduler(blocks=6, seqs=2)
    old, new, late = request(8, max_tokens=12), request(8, max_tokens=16), request(4)
    made.add(old)
    made.add(new)
    made.add(late)
    while new.num_preemptions == 0:
        step(made)
    assert made._waiting.head(0.0) is new
    drain(made)
    assert [event.what for event in new.events].count("admitted") == 2


def test_old_prefixes_make_room_least_recently_used_first():
    made = scheduler(blocks=4)
    for prompt in ([1] * 4, [2] * 4, [1] * 4):
        made.add(request(prompt, max_tokens=1))
        drain(made)
    batch_tokens = request(9, max_tokens=3)
    made.add(batch_tokens)
    assert made.schedule(0.0).evicted_blocks == 1
    assert made.cache._prefixes.find("", [1] * 4)
    assert not made.cache._prefixes.find("", [2] * 4)


def test_a_prefix_is_evicted_from_its_end():
    made = scheduler(blocks=4)
    made.add(request([1] * 12, max_tokens=1))
    drain(made)
    made.add(request(8, max_tokens=1))
    step(made)
    assert len(made.cache._prefixes.find("", [1] * 12)) == 2


def test_abort_frees_blocks_in_any_state():
    made = scheduler(blocks=8, budget=4, seqs=1)
    running, waiting = request(8), request(8)
    made.add(running)
    made.add(waiting)
    step(made)
    for item in (running, waiting):
        made.finish(item, FinishReason.ABORT, 2.0)
    assert not made.has_work
    assert made.cache.num_used == 0
    assert running.events[-1].why == FinishReason.ABORT


def test_tokens_computed_a_second_time_are_told_apart():
    made = scheduler(blocks=6, seqs=4, caching=False)
    old, new = request(8, max_tokens=16), request(8, max_tokens=16)
    made.add(old)
    made.add(new)
    while not (preempted := step(made).preempted):
        pass
    victim = preempted[0][0]
    lost = victim.num_recompute
    assert lost >= 8
    while victim.num_recompute == lost:
        step(made)
    assert victim.num_recompute == 0


def test_unused_slots_are_counted():
    made = scheduler()
    made.add(request(5))
    step(made)
    assert made.stats().unused_slots == 3
