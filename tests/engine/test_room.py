"""The memory that is really there: a shared accelerator through a fake driver, and a pool that is touched."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from known_models import LLAMA_3_8B
from octavo_engine.config import EngineConfig
from octavo_engine.errors import InsufficientMemory
from octavo_engine.memory import CacheGeometry, plan_cache
from octavo_engine.model.costs import needs_of
from octavo_engine.runtime import host_pool as host_pool_module
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


def test_a_kernel_that_cannot_populate_still_gives_a_touched_pool(monkeypatch):
    monkeypatch.setattr(host_pool_module, "POPULATE_WRITE", 12345)
    before, size = resident_bytes(), 64 * 1024**2
    pool = host_pool_module.host_pool(size)
    assert resident_bytes() - before > 0.9 * size
    assert pool.shape == (size,)
    assert not pool.any()


def test_more_than_the_machine_has_is_refused_by_name():
    with pytest.raises(InsufficientMemory, match="--kv-cache-memory-bytes"):
        host_pool_module.host_pool(1 << 56)


def test_huge_pages_are_given_up_when_they_take_too_long_and_not_before(monkeypatch):
    """The kernel here takes 0.2 s of processor time for each piece of 64 MiB in huge pages."""
    clock, advised = iter(0.2 * number for number in range(100)), []

    def advise(address, size, *, advice):
        if advice != host_pool_module.POPULATE_WRITE:
            advised.append(advice == mmap.MADV_HUGEPAGE)
        return 0

    monkeypatch.setattr(host_pool_module, "_advise", advise)
    monkeypatch.setattr(host_pool_module.time, "thread_time", lambda: next(clock))
    populate = host_pool_module.Populate()
    assert {populate(0, host_pool_module.PIECE_BYTES) for _ in range(8)} == {0}
    assert advised == [True] * 3 + [False] * 5


def test_a_device_that_does_not_give_what_it_had_is_no_crash(monkeypatch):
    """Others took it in between, or it is free in pieces."""

    def empty(*_size, **_how):
        raise torch.OutOfMemoryError("CUDA out of memory")

    geometry = CacheGeometry(layers=2, kv_heads=8, head_dim=128, bytes_per_value=2, block_size=16)
    monkeypatch.setattr(torch, "empty", empty)
    with pytest.raises(InsufficientMemory, match=r"does not give 1\.00 GiB for the KV cache: lower --gpu-memory"):
        allocate(geometry, 8192, dtype=torch.bfloat16, device=CUDA)
