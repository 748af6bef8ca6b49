"""The fast torch path computes what the plain definition does, whatever the batch; it never reads what nobody wrote."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_cases import TOLERANCE, Case, decode_cases, mixed_cases
from octavo_engine.kernels import torch_paged

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("case", [*decode_cases(), *mixed_cases()], ids=str)
def test_equals_the_plain_definition(case: Case) -> None:
    assert case.difference("torch") <= TOLERANCE[case.dtype]


decodes = st.lists(st.tuples(st.integers(0, 120), st.just(1)), max_size=6)
chunks = st.lists(st.tuples(st.integers(0, 60), st.integers(2, 40)), max_size=3)


@settings(max_examples=60, deadline=None)
@given(decodes, chunks, st.sampled_from([None, 1, 5, 33]), st.sampled_from([(4, 2), (3, 1), (2, 2)]))
def test_equals_the_plain_definition_for_any_batch(
    first: list[tuple[int, int]], then: list[tuple[int, int]], window: int | None, heads: tuple[int, int]
) -> None:
    work = tuple(first + then) or ((0, 1),)
    case = Case(work, heads=heads[0], kv_heads=heads[1], head_dim=16, window=window)
    assert case.difference("torch") <= TOLERANCE[case.dtype]


def test_decodes_larger_than_the_scratch_memory_are_cut_into_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tuple((length, 1) for length in (50, 49, 48, 47, 46)))
    monkeypatch.setattr(torch_paged, "GATHER_BYTES", 2 * 51 * case.kv_heads * case.head_dim * 4)
    assert case.difference("torch") <= TOLERANCE[torch.float32]


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=50), st.integers(1, 20000))
def test_groups_hold_everyone_once_within_their_limits(lengths: list[int], room: int) -> None:
    groups = torch_paged.group_by_length(lengths, room)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        sizes = [lengths[index] for index in group]
        assert max(sizes) <= torch_paged.PADDING_LIMIT * min(sizes)
        assert len(group) == 1 or torch_paged.padded_size(group, lengths) <= room
