"""Packed weights lie one after another, each at the beginning of a line; their memory goes back when they go."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from octavo_engine.kernels.cpu.arena import ALIGNMENT, HUGE_PAGE_BYTES, Arena

pytestmark = pytest.mark.engine


def test_pieces_follow_one_another_from_a_huge_page_on() -> None:
    arena = Arena()
    first, second = arena.empty((3, 7), torch.int32), arena.empty((5,), torch.bfloat16)
    assert first.data_ptr() % HUGE_PAGE_BYTES == 0
    assert second.data_ptr() == first.data_ptr() + 2 * ALIGNMENT
    assert (first.shape, second.dtype) == ((3, 7), torch.bfloat16)
    assert first.is_contiguous()


def test_what_is_larger_than_a_chunk_has_its_own() -> None:
    arena = Arena(chunk_bytes=1024)
    large, small = arena.empty((5000,), torch.float32), arena.empty((10,), torch.float32)
    large.fill_(1)
    small.fill_(2)
    assert large.sum() == 5000


def test_threads_get_pieces_of_their_own() -> None:
    arena = Arena(chunk_bytes=8192)
    with ThreadPoolExecutor(8) as pool:
        pieces = list(pool.map(lambda number: arena.empty((100,), torch.int32).fill_(number), range(500)))
    assert all(piece.eq(number).all() for number, piece in enumerate(pieces))


def test_memory_goes_back_with_the_last_tensor_in_it() -> None:
    size = 64 * 1024**2
    arena = Arena(chunk_bytes=size)
    held = [arena.empty((size // 8,), torch.float32).fill_(1) for _ in range(2)]
    gc.collect()  # what other tests have left is not to go in between
    before = anonymous_bytes()
    arena.empty((size // 4,), torch.float32)  # another chunk takes the place of the newest
    part = held[0][:1]
    held.clear()
    gc.collect()
    assert anonymous_bytes() > before - size // 2, "a part still lies in it"
    del part
    gc.collect()
    assert anonymous_bytes() < before - size // 2


def anonymous_bytes() -> int:
    """Of this process, in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
