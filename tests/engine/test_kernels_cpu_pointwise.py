"""The fused norm and the heads' way into the cache equal the plain ones."""

from __future__ import annotations

import pytest
import torch

from octavo_engine.kernels.choice import choose_attention, choose_pointwise
from octavo_engine.kernels.cpu.cache_form import keys_by_word, values_by_word, write_kv
from octavo_engine.kernels.pointwise import PLAIN, HeadNorms, PointwiseKernels
from octavo_engine.model.compute.rope import angles

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("cpu_target")]
CLOSE = {torch.float32: {"atol": 3e-6, "rtol": 3e-6}, torch.bfloat16: {"atol": 3e-2, "rtol": 2e-2}}
DTYPES = pytest.mark.parametrize("dtype", CLOSE, ids=str)


@pytest.fixture(scope="module")
def fused(cpu_target: str) -> PointwiseKernels:
    from octavo_engine.kernels.cpu import pointwise

    return pointwise.KERNELS


def numbers(*shape: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@DTYPES
@pytest.mark.parametrize("width", [1, 15, 16, 64, 576, 1030])
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_norm_equals_the_plain_one(rows: int, width: int, dtype: torch.dtype, fused: PointwiseKernels) -> None:
    x, weight = numbers(rows, width, seed=1, dtype=dtype) * 3, numbers(width, seed=2, dtype=dtype)
    torch.testing.assert_close(fused.rms_norm(x, weight, 1e-5), PLAIN.rms_norm(x, weight, 1e-5), **CLOSE[dtype])


def test_norm_of_nothing_but_zeros_is_zero(fused: PointwiseKernels) -> None:
    assert fused.rms_norm(torch.zeros(2, 20), torch.ones(20), 1e-6).eq(0).all()


@DTYPES
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128])
@pytest.mark.parametrize("tokens", [1, 2, 33])
def test_heads_are_turned_and_stored_alike(
    tokens: int, head_dim: int, normed: bool, dtype: torch.dtype, fused: PointwiseKernels
) -> None:
    query_heads, kv_heads, blocks, block_size = 9, 3, 7, 16
    heads = numbers(tokens, query_heads + 2 * kv_heads, head_dim, seed=1, dtype=dtype)
    norms = HeadNorms(*(numbers(head_dim, seed=seed, dtype=dtype) for seed in (2, 3)), 1e-6) if normed else None
    slots = torch.randperm(blocks * block_size, generator=torch.Generator().manual_seed(4))[:tokens]
    cos, sin = angles(torch.arange(tokens) * 37, torch.linspace(1, 0.01, head_dim // 2), dtype)
    found, caches = [], []
    for kernels in (fused, PLAIN):
        cache = (torch.zeros(blocks, block_size, kv_heads, head_dim, dtype=dtype) + 7,) * 2
        cache = (cache[0].clone(), cache[1].clone())
        found.append(kernels.prepare_store(cos, sin, slots)(heads.clone(), norms, cache))
        caches.append(cache)
    torch.testing.assert_close(found[0], found[1], **CLOSE[dtype])
    torch.testing.assert_close(by_token(keys_by_word(caches[0][0]), (0, 3, 1, 2, 4)), caches[1][0], **CLOSE[dtype])
    values = by_token(values_by_word(caches[0][1]), (0, 2, 4, 1, 3))
    assert torch.equal(values, caches[1][1]), "values are copied as they are, and other slots left alone"


def by_token(cache: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """`[blocks, block_size, kv_heads, head_dim]` of a cache by word, its dimensions put in this order."""
    return cache.permute(order).reshape(7, 16, 3, -1)


@DTYPES
def test_all_write_a_cache_alike(dtype: torch.dtype, fused: PointwiseKernels) -> None:
    """What the attention kernels' own `write_kv` stores, and what comes with the turned heads."""
    key, value, slots = numbers(9, 3, 64, seed=1, dtype=dtype), numbers(9, 3, 64, seed=2, dtype=dtype), torch.arange(9)
    cos, sin = torch.ones(9, 1, 64, dtype=dtype), torch.zeros(9, 1, 64, dtype=dtype)
    written = torch.zeros(2, 2, 16, 3, 64, dtype=dtype).unbind()
    stored = torch.zeros(2, 2, 16, 3, 64, dtype=dtype).unbind()
    write_kv(key, value, *written, slots)
    fused.prepare_store(cos, sin, slots)(torch.cat((key, key, value), dim=1), None, stored)
    for found, wanted in zip(stored, written, strict=True):
        assert torch.equal(found, wanted)


def test_half_precision_of_the_other_kind_stays_plain() -> None:
    assert choose_pointwise(torch.float16, torch.device("cpu"), choose_attention("cpu")) is PLAIN


def test_a_cache_that_others_read_is_stored_as_they_read_it() -> None:
    chosen = choose_pointwise(torch.bfloat16, torch.device("cpu"), choose_attention("torch"))
    assert chosen.prepare_store is PLAIN.prepare_store
