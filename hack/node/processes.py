"""Daemons of the node: started in its namespace, remembered by pid and start time, ended for certain.

A pid alone may have passed to a stranger; with the start time and the boot it cannot. Signals go through a pidfd, so
the process that was checked is the one that is signalled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from node.config import NAMESPACE

_MARK = "OCTAVO_NODE_STATE"
_TERM_SECONDS = 10.0
_KILL_SECONDS = 5.0


@dataclass(frozen=True)
class Record:
    """One started daemon; `fingerprint` tells with which arguments and files it runs."""

    pid: int
    started: int
    boot: str
    fingerprint: str

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return self.boot == boot_id() and _start_time(self.pid) == self.started


def load(path: Path) -> Record | None:
    """The record in a file, or None when there is none that can be read (an interrupted write counts as none)."""
    try:
        return Record(**json.loads(path.read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def start(argv: list[str], *, record: Path, log: Path, fingerprint: str, state: Path, path: str) -> Record:
    """Start a daemon in its own session with output into `log` (the old one is kept as .previous) and remember it."""
    for folder in (record.parent, log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(".previous.log"))
    env = {"PATH": path, "HOME": "/root", _MARK: str(state)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    # nsenter replaces itself, so the pid and its start time stay those of the daemon.
    started = Record(process.pid, _start_time(process.pid) or 0, boot_id(), fingerprint)
    partial = record.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(started)))
    partial.rename(record)
    return started


def stop(record: Record, term_seconds: float = _TERM_SECONDS) -> None:
    """End a daemon: SIGTERM, and SIGKILL when it is still there after `term_seconds`."""
    for number, seconds in ((signal.SIGTERM, term_seconds), (signal.SIGKILL, _KILL_SECONDS)):
        if not _signal(record, number):
            return
        deadline = time.monotonic() + seconds
        while record.alive and time.monotonic() < deadline:
            time.sleep(0.02)


def sweep(state: Path) -> int:
    """Kill every process that belongs to the node, pods and container shims included; returns how many there were.

    A process is ours when it inherited the node's mark or runs in a cgroup below the node's.
    """
    killed = 0
    for _ in range(5):
        found = list(_members(state))
        if not found:
            break
        for record in found:
            stop(record, term_seconds=0.0)
        killed += len(found)
    return killed


def _signal(record: Record, number: signal.Signals) -> bool:
    """Whether the recorded process was there to get the signal."""
    try:
        descriptor = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return False
    try:
        if not record.alive:
            return False
        signal.pidfd_send_signal(descriptor, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)


def _members(state: Path) -> Iterator[Record]:
    mark = f"{_MARK}={state}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            ours = mark in (folder / "environ").read_bytes().split(b"\0") or _in_our_cgroup(
                (folder / "cgroup").read_text()
            )
        except OSError:
            continue
        started = _start_time(int(folder.name))
        if ours and started is not None:
            yield Record(int(folder.name), started, boot_id(), "")


def _in_our_cgroup(text: str) -> bool:
    return any(line.split(":", 2)[2].startswith(f"/{NAMESPACE}/") for line in text.splitlines())


def _start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of a process; None when it is gone or only waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold spaces.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def boot_id() -> str:
    """What tells one boot of the machine from the next."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def environment_path(*folders: Path) -> str:
    """PATH of the daemons: the given folders before the system's."""
    return os.pathsep.join(
        [*map(str, folders), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    )
