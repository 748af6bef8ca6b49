"""What this process may use of its machine: the container's limits (cgroup v1 and v2) before the host's sizes."""

from __future__ import annotations

import math
import os
from pathlib import Path

# The kernel's way to say "no limit" in cgroup v1: the largest page-aligned 63-bit number, or near it.
UNLIMITED = 1 << 60


def cpu_limit(root: Path = Path("/sys/fs/cgroup")) -> int:
    """CPU threads worth starting: the container's quota rounded up, the affinity mask, never less than 1."""
    allowed = len(os.sched_getaffinity(0))
    quota = _cpu_quota(root)
    return max(1, min(allowed, math.ceil(quota)) if quota else allowed)


def memory_limit(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes this container may use, at most the host's memory."""
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _read_int(root / name)
        if limit is not None and limit < UNLIMITED:
            return min(limit, host)
    return host


def memory_left(proc: Path = Path("/proc")) -> int | None:
    """Bytes that other processes of this machine leave us: what is available, and what is ours already.

    None where the kernel does not tell. Below a container's limit, the machine's memory may be spoken for all the same.
    """
    available, ours = _read_kib(proc / "meminfo", "MemAvailable"), _read_kib(proc / "self/status", "RssAnon")
    return None if available is None else available + (ours or 0)


def _cpu_quota(root: Path) -> float | None:
    """CPUs granted by a quota, or None without one."""
    try:
        quota, period = (root / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    quota_us, period_us = _read_int(root / "cpu/cpu.cfs_quota_us"), _read_int(root / "cpu/cpu.cfs_period_us")
    return quota_us / period_us if quota_us and quota_us > 0 and period_us else None


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
