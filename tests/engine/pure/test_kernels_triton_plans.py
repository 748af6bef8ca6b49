"""What Triton's attention decides before anything runs: launches, pieces of contexts, and the bytes that they cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.kernels.triton.splits import (
    LONGEST_PIECE,
    MOST_PROGRAMS,
    PROGRAMS_A_PROCESSOR,
    DecodeCut,
    Pieces,
    cut_chunks,
)
from octavo_engine.kernels.triton.targets import A100, B200, H100, KIB, TABLE, Launch, Row, Target, launch_of
from octavo_engine.kernels.triton.traffic import DecodeShape, decode_traffic

TILE = 64


def way(sequences: int, *, kv_heads: int = 8, group: int = 4, cached_bytes: int = 2) -> DecodeCut:
    return DecodeCut(
        units=sequences * kv_heads,
        processors=H100.processors,
        group=group,
        cached_bytes=cached_bytes,
        tile=TILE,
    )


def cut(context: int, sequences: int, **sizes: int) -> Pieces:
    return way(sequences, **sizes).pieces(context)


@pytest.mark.parametrize("target", [A100, H100, B200, Target(86, 72), Target(89, 142), Target(120, 188)])
@pytest.mark.parametrize(
    "kernel", [f"{kind}{bits}" for kind in ("decode", "mixed") for bits in (16, 32, "16_8", "32_8")]
)
@pytest.mark.parametrize("dim", [16, 64, 128, 256])
def test_every_device_has_a_launch_for_every_head(target: Target, kernel: str, dim: int) -> None:
    launch = launch_of(kernel, target.capability, dim)
    row = next(row for row in TABLE if row.launch is launch)
    assert (row.kernel, row.capability <= target.capability, row.size >= dim) == (kernel, True, True)


def test_a_launch_is_the_latest_and_then_the_narrowest_that_is_enough() -> None:
    old, new, wide = (Launch(warps, 1, {}) for warps in (1, 2, 4))
    table = [Row("k", 80, 64, old), Row("k", 90, 256, wide), Row("k", 90, 128, new), Row("other", 100, 64, old)]
    assert launch_of("k", 89, 64, table) is old
    assert launch_of("k", 100, 64, table) is new
    assert launch_of("k", 90, 129, table) is wide
    with pytest.raises(LookupError, match="no launch of k for size 128 on compute capability 80"):
        launch_of("k", 80, 128, table)


def test_devices_in_figures() -> None:
    assert [target.shared_bytes // KIB for target in (A100, H100, B200, Target(86, 72))] == [163, 227, 227, 99]
    assert [target.has_e4m3 for target in (A100, Target(89, 142), H100)] == [False, True, True]


def test_few_sequences_are_cut_until_the_device_is_busy() -> None:
    wanted = PROGRAMS_A_PROCESSOR * H100.processors
    alone, many = cut(32_768, 1), cut(1024, 128)
    assert 0.9 * wanted <= 8 * alone.count <= 1.1 * wanted
    assert many == Pieces(1, 1024)


def test_no_piece_is_so_long_that_a_step_waits_for_it() -> None:
    assert cut(32_768, 128) == Pieces(16, LONGEST_PIECE)


def test_what_pieces_leave_behind_is_bounded() -> None:
    pieces = cut(131_072, 256)
    assert 256 * 8 * pieces.count <= MOST_PROGRAMS
    assert pieces.count > 1


def test_a_short_context_is_not_cut() -> None:
    assert cut(100, 1) == Pieces(1, 128)
    assert cut(1, 1) == Pieces(1, 64)


@given(st.integers(1, 200_000), st.integers(1, 512), st.integers(1, 16), st.integers(1, 40), st.sampled_from([1, 2, 4]))
def test_pieces_cover_the_context_in_whole_tiles(
    context: int, sequences: int, kv_heads: int, group: int, cached_bytes: int
) -> None:
    pieces = cut(context, sequences, kv_heads=kv_heads, group=group, cached_bytes=cached_bytes)
    assert pieces.tokens % TILE == 0
    assert (pieces.count - 1) * pieces.tokens < context <= pieces.count * pieces.tokens
    assert pieces.of(context) == pieces.count


@given(st.integers(1, 200_000), st.integers(1, 200_000), st.integers(1, 512), st.integers(1, 16), st.integers(1, 40))
def test_a_recorded_step_has_programs_for_the_pieces_of_any_shorter_one(
    one: int, other: int, sequences: int, kv_heads: int, group: int
) -> None:
    shorter, longest = sorted((one, other))
    found = way(sequences, kv_heads=kv_heads, group=group)
    assert 1 <= found.pieces(shorter).count <= found.most(longest)
    assert found.most(longest) == 1 or sequences * kv_heads * found.most(longest) <= MOST_PROGRAMS


@given(st.integers(1, 200_000), st.integers(1, 5000), st.sampled_from([16, 32, 64]))
def test_chunks_are_cut_only_to_fill_the_device(context: int, units: int, tile: int) -> None:
    pieces = cut_chunks(context=context, units=units, processors=H100.processors, least=512, tile=tile)
    assert pieces.tokens % tile == 0
    assert (pieces.count - 1) * pieces.tokens < context <= pieces.count * pieces.tokens
    if pieces.count > 1:
        assert units * pieces.count <= PROGRAMS_A_PROCESSOR * H100.processors
        assert pieces.tokens >= 512


shapes = st.builds(
    lambda group, kv_heads, dim, size, cached, window: DecodeShape(
        heads=group * kv_heads,
        kv_heads=kv_heads,
        head_dim=dim,
        block_size=size,
        query_bytes=2,
        cached_bytes=cached,
        window=window,
    ),
    st.sampled_from([1, 2, 3, 4, 7, 8, 16]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([64, 80, 96, 128, 256]),
    st.sampled_from([16, 32]),
    st.sampled_from([1, 2]),
    st.sampled_from([None, 512, 4096]),
)


def ratio(shape: DecodeShape, lengths: list[int], recorded_for: int | None = None) -> float:
    longest = max(lengths)
    found = way(
        len(lengths),
        kv_heads=shape.kv_heads,
        group=shape.heads // shape.kv_heads,
        cached_bytes=shape.cached_bytes,
    )
    pieces = found.pieces(min(longest, shape.window or longest))
    most = 1 if recorded_for is None else found.most(min(recorded_for, shape.window or recorded_for))
    return decode_traffic(shape, lengths, pieces, TILE, most).ratio


@given(shapes, st.integers(1, 20_000), st.integers(1, 256))
def test_decodes_of_like_lengths_move_hardly_more_than_they_must(shape: DecodeShape, length: int, count: int) -> None:
    assert 1 <= ratio(shape, [length]) < 1.1
    assert 1 <= ratio(shape, [max(1, length - step) for step in range(0, 8 * min(count, 32), 8)]) < 1.1


@given(shapes, st.lists(st.integers(1, 20_000), min_size=1, max_size=64))
def test_decodes_of_any_lengths_move_little_more_than_they_must(shape: DecodeShape, lengths: list[int]) -> None:
    assert 1 <= ratio(shape, lengths) < 1.25


@given(shapes.filter(lambda shape: shape.window is None), st.integers(2048, 20_000), st.integers(1, 32))
def test_programs_that_a_recorded_step_does_not_need_cost_hardly_anything(
    shape: DecodeShape, length: int, count: int
) -> None:
    """They look at two numbers and leave. Beside two thousand tokens that is nothing; beside ten it may be all there
    is, but then the whole step is nothing beside its weights."""
    assert 1 <= ratio(shape, [length] * count, recorded_for=131_072) < 1.1


def test_an_idle_program_looks_at_two_numbers() -> None:
    shape = DecodeShape(heads=8, kv_heads=2, head_dim=128, block_size=16, query_bytes=2, cached_bytes=2)
    plain, recorded = (decode_traffic(shape, [300, 20], Pieces(3, 128), TILE, most) for most in (1, 10))
    assert recorded.needed == plain.needed
    looks = 2 * 2 * (10 * 2 - 3) * 4  # of both sequences, for each key head
    assert recorded.moved - plain.moved == looks + 2 * 8 * 4  # and each merge at what a piece has


def test_the_cost_model_in_figures() -> None:
    """Two sequences, one of them in three pieces, worked out by hand."""
    shape = DecodeShape(heads=8, kv_heads=2, head_dim=128, block_size=16, query_bytes=2, cached_bytes=2)
    found = decode_traffic(shape, [300, 20], Pieces(3, 128), TILE)
    cached, queries = 2 * 320 * 2 * 128 * 2, 8 * 128 * 2
    assert found.needed == cached + 4 * queries
    tables = 2 * 4 * (19 + 3 + 2 + 3)  # blocks of both, and each program's look at a length
    merged = 2 * 3 * 8 * 129 * 4 + 2 * 8 * 8  # three pieces, written and read, and a position for each head
    assert found.moved == cached + (3 + 1 + 1 + 1) * queries + tables + merged
