"""The machine's own best is measured with every set of instructions, and is a rate that a processor can have."""

from __future__ import annotations

import pytest
import torch

from octavo_engine.kernels.cpu import rates

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("cpu_target")]


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_is_read_at_a_rate_of_this_world(threads: int) -> None:
    assert 1e7 < rates.read_rate(threads, size=8 * 1024**2 + 1000) < 1e13


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_product_is_really_computed(dtype: torch.dtype) -> None:
    """A loop that the compiler had folded would be faster than any processor."""
    one, two = (rates.product_rate(dtype, threads) for threads in (1, 2))
    assert 1e8 < one < 1e12
    assert two < 4 * one
