"""The memory that is really there: a shared accelerator through a fake driver, and a pool that is touched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from known_models import LLAMA_3_8B
from octavo_engine.config import EngineConfig
from octavo_engine.errors import InsufficientMemory
from octavo_engine.memory import CacheGeometry, plan_cache
from octavo_engine.model.tensors.costs import needs_of
from octavo_engine.runtime.host_pages import HostPages
from octavo_engine.runtime.host_pool import host_pool
from octavo_engine.runtime.kv_store import allocate
from octavo_engine.runtime.room import DeviceMemory, as_loaded, device_room, room_of

GIB = 1024**3
CUDA = torch.device("cuda")


@pytest.fixture
def driver(monkeypatch):
    """A driver that tells what the test says: total, free and ours, in GiB."""

    def say(total: float, free: float, ours: float = 0.0) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free * GIB), int(total * GIB)))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: int(ours * GIB))

    return say


def test_nine_tenths_of_a_shared_device_are_refused_before_and_after_loading(driver):
    config = EngineConfig(gpu_memory_utilization=0.9)
    needs = needs_of(LLAMA_3_8B, config, width=2)
    driver(total=80, free=50)
    with pytest.raises(InsufficientMemory, match=r"others hold 30\.00: lower it to 0\.62 or less"):
        plan_cache(needs, room_of(config, CUDA))
    driver(total=80, free=34, ours=16)
    with pytest.raises(InsufficientMemory, match=r"lower it to 0\.62 or less"):
        plan_cache(as_loaded(needs, CUDA), room_of(config, CUDA))


def test_the_value_that_was_named_fits(driver):
    config = EngineConfig(gpu_memory_utilization=0.62)
    needs = needs_of(LLAMA_3_8B, config, width=2)
    driver(total=80, free=50)
    before = plan_cache(needs, room_of(config, CUDA))
    driver(total=80, free=34.75, ours=15.25)
    after = plan_cache(as_loaded(needs, CUDA), room_of(config, CUDA))
    assert as_loaded(needs, CUDA).weights == int(15.25 * GIB)
    assert after.cache_bytes + int(15.25 * GIB) + needs.activations <= 50 * GIB
    assert before.longest == after.longest == 8192


def test_what_is_neither_free_nor_ours_is_held_by_others():
    room = device_room(EngineConfig(), DeviceMemory(total=100, free=30, ours=50))
    assert room.others == 20
    assert device_room(EngineConfig(), DeviceMemory(total=100, free=60, ours=50)).others == 0


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


@pytest.mark.parametrize("head_dim", [2, 1024], ids=["smaller than a huge page", "larger"])
def test_the_pool_is_in_memory_before_it_is_needed(head_dim):
    geometry = CacheGeometry(layers=2, kv_heads=1, head_dim=head_dim, bytes_per_value=2, block_size=16)
    pool_bytes, before = 128 * geometry.block_bytes, resident_bytes()
    caches = allocate(geometry, 128, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert sum(tensor.nbytes for pair in caches for tensor in pair) == pool_bytes
    assert not any(tensor.any() for pair in caches for tensor in pair)
    if pool_bytes > 1024**2:  # what is smaller is lost among what the allocator had left
        assert resident_bytes() - before > 0.9 * pool_bytes


def test_pages_that_were_begun_are_the_pools_if_they_are_enough():
    pages, before = HostPages(96 * 1024**2), resident_bytes()
    pages.begin()
    pool = host_pool(80 * 1024**2, pages)
    assert pool.data_ptr() == torch.frombuffer(pages.memory, dtype=torch.uint8).data_ptr()
    assert pool.shape == (80 * 1024**2,)
    assert 75 * 1024**2 < resident_bytes() - before < 90 * 1024**2
    assert not pool.any()
    assert host_pool(100 * 1024**2, pages).shape == (100 * 1024**2,)


def test_a_device_that_does_not_give_what_it_had_is_no_crash(monkeypatch):
    """Others took it in between, or it is free in pieces."""

    def empty(*_size, **_how):
        raise torch.OutOfMemoryError("CUDA out of memory")

    geometry = CacheGeometry(layers=2, kv_heads=8, head_dim=128, bytes_per_value=2, block_size=16)
    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(InsufficientMemory, match=r"does not give 1\.00 GiB for the KV cache: lower --gpu-memory"):
        allocate(geometry, 8192, dtype=torch.bfloat16, device=CUDA)
