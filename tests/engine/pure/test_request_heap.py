"""The heap against its plain twin, a dictionary of which the minimum is taken."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from octavo_engine.scheduling.request_heap import RequestHeap
from scheduling_helpers import request

NUMBERS = st.integers(0, 40)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["push", "discard"]), NUMBERS, st.integers(0, 5)), max_size=400))
def test_the_first_is_the_smallest(operations):
    heap, twin, items = RequestHeap(), {}, [request(1) for _ in range(41)]
    for what, number, key in operations:
        if what == "push":
            heap.push((float(key), number), items[number])
            twin[number] = (float(key), number)
        else:
            heap.discard(items[number])
            twin.pop(number, None)
        assert len(heap) == len(twin)
        assert heap.first() is (items[min(twin, key=twin.__getitem__)] if twin else None)


def test_stale_entries_do_not_pile_up():
    heap, item = RequestHeap(), request(1)
    for key in range(1000):
        heap.push((-key, 0), item)
    assert len(heap._entries) <= 2 * len(heap) + 64
    assert heap.first() is item
