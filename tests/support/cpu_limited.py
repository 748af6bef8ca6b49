"""A running process under a CPU limit of the kernel's, as a container's is, for as long as a test wants. Needs root."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD = 100_000
_ROOT = Path("/sys/fs/cgroup")
_PATIENCE_SECONDS = 5.0


@contextmanager
def cpu_limited(process: int, share: float) -> Iterator[None]:
    """The process, all its threads together, gets this share of one processor; afterwards it is where it was."""
    root, before = _hierarchy(process)
    group = root / f"octavo-test-{process}"
    group.mkdir()
    try:
        _limit(group, round(share * PERIOD))
        (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        (before / "cgroup.procs").write_text(str(process))
        _remove(group)


def _hierarchy(process: int) -> tuple[Path, Path]:
    """The root of the hierarchy that limits processors, and the process's own group in it."""
    for line in Path(f"/proc/{process}/cgroup").read_text().splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if "cpu" in controllers.split(","):
            return _ROOT / "cpu", _ROOT / "cpu" / path.lstrip("/")
        if controllers == "" and (_ROOT / "cgroup.controllers").exists():
            return _ROOT, _ROOT / path.lstrip("/")
    raise AssertionError("no hierarchy of control groups limits processors here")


def _limit(group: Path, quota: int) -> None:
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_period_us").write_text(str(PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (group / "cpu.max").write_text(f"{quota} {PERIOD}")


def _remove(group: Path) -> None:
    """A group that has just been left is busy for a moment."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
