"""What a container may use, read from made-up cgroup files; and the one memory formula."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo_engine.errors import InsufficientMemory
from octavo_engine.memory import (
    HOST_RUNTIME_BYTES,
    CacheGeometry,
    check_host,
    device_cache_bytes,
    host_cache_bytes,
    plan_blocks,
)
from octavo_engine.runtime import host

GIB = 1024**3
SMOL = CacheGeometry(layers=30, kv_heads=3, head_dim=64, bytes_per_value=2, block_size=16)


def cgroup(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000\n"}, 8),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "20000 100000\n"}, 1),
        ({"cpu.max": "6400000 100000\n"}, 8),
        ({"cpu.max": "garbage"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_threads_follow_the_containers_limit(tmp_path, files, threads):
    assert host.cpu_limit(cgroup(tmp_path, files)) == threads


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "1073741824\n"}, GIB),
        ({"memory/memory.limit_in_bytes": "1073741824"}, GIB),
        ({"memory.max": "max\n"}, None),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ({}, None),
    ],
)
def test_memory_is_the_containers_not_the_hosts(tmp_path, files, limit):
    whole = host.memory_limit(tmp_path / "nothing here")
    assert host.memory_limit(cgroup(tmp_path, files)) == (limit or whole)


def test_a_block_holds_keys_and_values_of_all_layers():
    assert SMOL.block_bytes == 2 * 30 * 3 * 64 * 2 * 16


def test_blocks_fill_the_budget_but_no_more_than_can_be_used():
    one = 128 * SMOL.block_bytes
    plan = {"max_model_len": 2048, "setting": "--kv-cache-memory-bytes"}
    assert plan_blocks(SMOL, budget=3 * one + 5, max_num_seqs=8, **plan) == 3 * 128
    assert plan_blocks(SMOL, budget=100 * one, max_num_seqs=8, **plan) == 8 * 128


@pytest.mark.parametrize("budget", [-5, 0, 127 * SMOL.block_bytes])
def test_too_little_is_refused_with_the_value_that_fits(budget):
    with pytest.raises(InsufficientMemory) as refused:
        plan_blocks(SMOL, budget=budget, max_model_len=2048, max_num_seqs=8, setting="--gpu-memory-utilization")
    message = str(refused.value)
    assert "--gpu-memory-utilization" in message
    assert f"--max-model-len to {max(0, budget) // SMOL.block_bytes * 16} " in message
    assert refused.value.reason == "InsufficientMemory"


def test_a_share_of_the_device_is_ours_less_what_we_took():
    assert device_cache_bytes(total=80 * GIB, utilization=0.9, taken_by_us=16 * GIB) == 56 * GIB


def test_a_host_gives_a_quarter_unless_told_otherwise():
    assert host_cache_bytes(limit=8 * GIB, wanted=None) == 2 * GIB
    assert host_cache_bytes(limit=8 * GIB, wanted=123) == 123


def test_weights_cache_and_the_process_share_the_containers_memory():
    check_host(limit=HOST_RUNTIME_BYTES + 3 * GIB, weights=2 * GIB, cache=GIB)
    with pytest.raises(InsufficientMemory, match=r"3\.50 GiB are needed \(2\.00 for weights, 1\.00 for the KV cache"):
        check_host(limit=HOST_RUNTIME_BYTES + 3 * GIB - 1, weights=2 * GIB, cache=GIB)
