"""What this process may use of its machine: the container's limits (cgroup v1 and v2) before the host's sizes."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

CGROUPS, PROC, DEVICES = Path("/sys/fs/cgroup"), Path("/proc"), Path("/dev")
ACCELERATORS = ("nvidia*", "dxg")  # as their drivers name them; the latter under Windows

# The kernel's way to say "no limit" in cgroup v1: the largest page-aligned 63-bit number, or near it.
UNLIMITED = 1 << 60
# How often a thread of the kernels looks for another step before it sleeps: about two milliseconds.
SPIN_COUNT = 100_000


def cpu_limit(root: Path = CGROUPS, proc: Path = PROC) -> int:
    """CPU threads worth starting: the container's quota rounded up, the affinity mask, never less than 1."""
    allowed = len(os.sched_getaffinity(0))
    quotas = [quota for group in _groups(root, proc, "cpu") if (quota := _cpu_quota(group)) is not None]
    return max(1, min(allowed, math.ceil(min(quotas, default=allowed))))


def cpu_periods(root: Path = CGROUPS, proc: Path = PROC) -> tuple[int, int]:
    """Periods of the kernel's scheduler in which a CPU limit was looked at, and those of them in which it stopped us.

    Both since the container began, of the group that stops us most; none without a limit.
    """
    counted = [periods for group in _groups(root, proc, "cpu") if (periods := _cpu_periods(group)) is not None]
    return max(counted, key=lambda periods: periods[1], default=(0, 0))


def openmp_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to the environment before torch is loaded, whose OpenMP reads it then; nothing where a user has.

    Between two regions of the kernels, of which a step has few, a thread without work spins until the next one; within
    a region, where waits are as many as kernels, they are our own (`native/team.h`) and short. Asleep in between, it
    has to be woken, and on a virtual machine its processor first has to be given back by the host: 8 streams over HTTP
    on two of these gave 157 tokens/s with 12 microseconds, 172 with this. Left to itself, OpenMP would spin for three
    times as long, which gave nothing more, and takes a processor from other containers when there is no work.
    """
    if "OMP_WAIT_POLICY" in environment or "GOMP_SPINCOUNT" in environment:
        return {}
    return {"GOMP_SPINCOUNT": str(SPIN_COUNT)}


def has_accelerator(devices: Path = DEVICES) -> bool:
    """False where torch will find no CUDA device; asked before torch is there to tell."""
    return any(next(devices.glob(name), None) is not None for name in ACCELERATORS)


def memory_limit(root: Path = CGROUPS, proc: Path = PROC) -> int:
    """Bytes this container may use, at most the host's memory."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [_read_int(group / name) for group in _groups(root, proc, "memory") for name in names]
    return min([host, *(limit for limit in limits if limit is not None and limit < UNLIMITED)])


def memory_left(proc: Path = PROC) -> int | None:
    """Bytes that other processes of this machine leave us: what is available, and what is ours already.

    None where the kernel does not tell. Below a container's limit, the machine's memory may be spoken for all the same.
    """
    available, ours = _read_kib(proc / "meminfo", "MemAvailable"), _read_kib(proc / "self/status", "RssAnon")
    return None if available is None else available + (ours or 0)


def _groups(root: Path, proc: Path, controller: str) -> Iterator[Path]:
    """This process's control group and those above it, each of which limits it: of version 2, and of `controller`.

    In a container the topmost is its own. Elsewhere, under systemd for one, it may be any of them.
    """
    yield from (root, root / controller)
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers == "" or controller in controllers.split(","):
            own = PurePosixPath(path.lstrip("/"))
            hierarchy = root / controller if controllers else root
            yield from (hierarchy / group for group in (own, *own.parents) if ".." not in group.parts)


def _cpu_quota(group: Path) -> float | None:
    """CPUs granted by a group's quota, or None without one."""
    try:
        quota, period = (group / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    quota_us, period_us = _read_int(group / "cpu.cfs_quota_us"), _read_int(group / "cpu.cfs_period_us")
    return quota_us / period_us if quota_us and quota_us > 0 and period_us else None


def _cpu_periods(group: Path) -> tuple[int, int] | None:
    """`nr_periods` and `nr_throttled`, which both versions write alike; None where they are not written."""
    try:
        words = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return int(words["nr_periods"]), int(words["nr_throttled"])
    except (OSError, ValueError, KeyError):
        return None


def _read_kib(path: Path, name: str) -> int | None:
    """The bytes of a line `Name:  123 kB`."""
    try:
        lines = path.read_text().splitlines()
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)
    except (OSError, ValueError, IndexError):
        return None


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
