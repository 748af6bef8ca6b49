"""What a container may use, read from made-up cgroup files."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo_engine.runtime import host

GIB = 1024**3


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
    assert host.cpu_limit(cgroup(tmp_path, files), tmp_path) == threads


@pytest.mark.parametrize(
    ("files", "periods"),
    [
        ({}, (0, 0)),
        ({"cpu.stat": "usage_usec 900\nuser_usec 800\n"}, (0, 0)),  # no limit, or the kernel counts none
        ({"cpu.stat": "usage_usec 900\nnr_periods 20\nnr_throttled 5\nthrottled_usec 70\n"}, (20, 5)),
        ({"cpu/cpu.stat": "nr_periods 20\nnr_throttled 5\nthrottled_time 70\n"}, (20, 5)),
        ({"cpu.stat": "nr_periods 9\nnr_throttled 1\n", "cpu/cpu.stat": "nr_periods 20\nnr_throttled 5\n"}, (20, 5)),
        ({"cpu.stat": "nr_periods many\nnr_throttled 1\n"}, (0, 0)),
    ],
)
def test_periods_are_those_of_the_group_that_stops_us_most(tmp_path, files, periods):
    assert host.cpu_periods(cgroup(tmp_path, files), tmp_path) == periods


V2, V1 = "0::/serving.slice/octavo.service\n", "11:memory:/kubepods/pod1/c1\n4:cpu,cpuacct:/kubepods/pod1/c1\n0::/\n"


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("groups", "files", "threads", "limit"),
    [
        (V2, {"serving.slice/octavo.service/memory.max": "4096", "serving.slice/cpu.max": "200000 100000"}, 2, 4096),
        (V2, {"serving.slice/memory.max": "4096", "serving.slice/octavo.service/memory.max": "8192"}, 8, 4096),
        (V2, {"other.slice/memory.max": "4096", "other.slice/cpu.max": "100000 100000"}, 8, None),
        (
            V1,
            {
                "memory/kubepods/pod1/memory.limit_in_bytes": "4096",
                "memory/kubepods/pod1/c1/memory.limit_in_bytes": "9",
            },
            8,
            9,
        ),
        (V1, {"cpu/kubepods/cpu.cfs_quota_us": "300000", "cpu/kubepods/cpu.cfs_period_us": "100000"}, 3, None),
        (
            V1,
            {
                "memory/memory.limit_in_bytes": "4096",
                "cpu/cpu.cfs_quota_us": "50000",
                "cpu/cpu.cfs_period_us": "100000",
            },
            1,
            4096,
        ),
        ("0::/../../elsewhere\n", {"memory.max": "4096"}, 8, 4096),
        ("nonsense", {"memory.max": "4096"}, 8, 4096),
    ],
)
def test_every_group_above_a_process_limits_it(tmp_path, groups, files, threads, limit):
    cgroup(tmp_path, files | {"proc/self/cgroup": groups})
    whole = host.memory_limit(tmp_path / "nothing here", tmp_path)
    assert host.cpu_limit(tmp_path, tmp_path / "proc") == threads
    assert host.memory_limit(tmp_path, tmp_path / "proc") == (limit or whole)


def test_threads_wait_a_moment_and_then_sleep_unless_a_user_says_otherwise():
    assert host.openmp_settings({"PATH": "/bin"}) == {"GOMP_SPINCOUNT": str(host.SPIN_COUNT)}
    assert host.openmp_settings({"OMP_WAIT_POLICY": "active"}) == {}
    assert host.openmp_settings({"GOMP_SPINCOUNT": "5"}) == {}


@pytest.mark.parametrize(
    ("meminfo", "status", "left"),
    [
        ("MemTotal: 100 kB\nMemAvailable:   30 kB\n", "RssAnon:\t   5 kB\nRssFile: 9 kB\n", 35 * 1024),
        ("MemAvailable: 30 kB\n", None, 30 * 1024),
        ("MemTotal: 100 kB\n", "RssAnon: 5 kB\n", None),
        ("MemAvailable: lots\n", "", None),
        (None, "RssAnon: 5 kB\n", None),
    ],
)
def test_what_others_hold_is_not_left_to_us(tmp_path, meminfo, status, left):
    files = {"meminfo": meminfo, "self/status": status}
    proc = cgroup(tmp_path, {name: text for name, text in files.items() if text is not None})
    assert host.memory_left(proc) == left


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
    whole = host.memory_limit(tmp_path / "nothing here", tmp_path)
    assert host.memory_limit(cgroup(tmp_path, files), tmp_path) == (limit or whole)
