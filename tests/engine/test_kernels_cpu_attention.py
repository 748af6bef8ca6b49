"""Attention in C++ equals the plain definition, whatever the batch; it never reads what nobody wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_cases import TOLERANCE, Case, decode_cases, mixed_cases
from octavo_engine.kernels.choice import choose_attention

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("cpu_target")]
FEW = ((0, 1), (15, 1), (16, 1), (90, 1))


@pytest.mark.parametrize("case", [*decode_cases(), *mixed_cases()], ids=str)
def test_equals_the_plain_definition(case: Case) -> None:
    assert case.difference("cpu") <= TOLERANCE[case.dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_dim", [2, 8, 16, 40, 48, 72, 112, 192])
def test_heads_of_any_width(head_dim: int, dtype: torch.dtype) -> None:
    assert Case(FEW, head_dim=head_dim, dtype=dtype).difference("cpu") <= TOLERANCE[dtype]


@pytest.mark.parametrize("group", range(1, 10))
def test_any_number_of_heads_may_share_keys(group: int) -> None:
    assert Case(FEW, heads=2 * group, kv_heads=2).difference("cpu") <= TOLERANCE[torch.float32]


@pytest.fixture(params=[1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


LONG = ((1999, 1), (3, 1), (640, 1), (0, 1), (700, 90))


@pytest.mark.parametrize("window", [None, 700])
@pytest.mark.usefixtures("threads")
def test_long_and_short_together_are_cut_into_pieces(window: int | None) -> None:
    assert Case(LONG, heads=9, kv_heads=3, window=window).difference("cpu") <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_query_alone_gets_the_bits_that_it_gets_among_others(dtype: torch.dtype, threads: int) -> None:
    """Alone, its context is shared out between the threads; among others one of them may compute all of it."""
    case = Case(LONG, heads=9, kv_heads=3, dtype=dtype)
    query, keys, values, layout = case.inputs("cpu")
    together = choose_attention("cpu").attend(query, keys, values, layout, scale=0.125)
    for row in (0, 2):
        alone = replace(
            layout,
            query_start=torch.tensor([0, 1], dtype=torch.int32),
            context_lens=layout.context_lens[row : row + 1],
            block_tables=layout.block_tables[row : row + 1],
        )
        found = choose_attention("cpu").attend(query[row : row + 1], keys, values, alone, scale=0.125)
        assert torch.equal(found[0], together[row]), f"with {threads} threads"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize(("head_dim", "block_size"), [(64, 16), (16, 6), (72, 16)])
def test_each_query_of_a_prompt_gets_the_bits_that_it_gets_alone(
    head_dim: int, block_size: int, window: int | None, dtype: torch.dtype
) -> None:
    """Many queries meet keys that were widened before, a single one widens what it reads."""
    first, count = 237, 61
    case = Case(
        ((first, count),), heads=9, kv_heads=3, head_dim=head_dim, block_size=block_size, window=window, dtype=dtype
    )
    query, keys, values, layout = case.inputs("cpu")
    kernels = choose_attention("cpu")
    together = kernels.attend(query, keys, values, layout, scale=0.125, window=window)
    for row in range(count):
        alone = replace(
            layout,
            query_start=torch.tensor([0, 1], dtype=torch.int32),
            context_lens=torch.tensor([first + row + 1], dtype=torch.int32),
        )
        found = kernels.attend(query[row : row + 1], keys, values, alone, scale=0.125, window=window)
        assert torch.equal(found[0], together[row]), f"query {row}"


decodes = st.lists(st.tuples(st.integers(0, 200), st.just(1)), max_size=6)
chunks = st.lists(st.tuples(st.integers(0, 300), st.integers(2, 70)), max_size=2)


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
