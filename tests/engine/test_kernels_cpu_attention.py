"""The C++ decode kernel equals the plain definition, whatever the batch; it never reads what nobody wrote."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_cases import TOLERANCE, Case, decode_cases, mixed_cases

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("cpu_target")]
FEW = ((0, 1), (15, 1), (16, 1), (90, 1))


@pytest.mark.parametrize("case", [*decode_cases(), *mixed_cases()], ids=str)
def test_equals_the_plain_definition(case: Case) -> None:
    assert case.difference("cpu") <= TOLERANCE[case.dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [8, 16, 40, 48, 72, 112, 192])
def test_heads_of_any_width(head_dim: int, dtype: torch.dtype) -> None:
    assert Case(FEW, head_dim=head_dim, dtype=dtype).difference("cpu") <= TOLERANCE[dtype]


@pytest.mark.parametrize("group", range(1, 10))
def test_any_number_of_heads_may_share_keys(group: int) -> None:
    assert Case(FEW, heads=2 * group, kv_heads=2).difference("cpu") <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_long_and_short_together_are_cut_into_pieces(threads: int) -> None:
    before = torch.get_num_threads()
    case = Case(((1999, 1), (3, 1), (640, 1), (0, 1)), heads=9, kv_heads=3)
    torch.set_num_threads(threads)
    try:
        assert all(replace(case, window=window).difference("cpu") <= TOLERANCE[torch.float32] for window in (None, 700))
    finally:
        torch.set_num_threads(before)


decodes = st.lists(st.tuples(st.integers(0, 200), st.just(1)), max_size=6)
chunks = st.lists(st.tuples(st.integers(0, 60), st.integers(2, 40)), max_size=2)


@settings(max_examples=60, deadline=None)
@given(decodes, chunks, st.sampled_from([None, 1, 5, 33]), st.sampled_from([(4, 2), (3, 1), (2, 2)]), st.booleans())
def test_equals_the_plain_definition_for_any_batch(
    first: list[tuple[int, int]],
    then: list[tuple[int, int]],
    window: int | None,
    heads: tuple[int, int],
    half: bool,
) -> None:
    dtype = torch.bfloat16 if half else torch.float32
    work = tuple(first + then) or ((0, 1),)
    case = Case(work, heads=heads[0], kv_heads=heads[1], head_dim=16, block_size=8, window=window, dtype=dtype)
    assert case.difference("cpu") <= TOLERANCE[dtype]
