"""`octavo serve` as users start it: a process, its ports, its signals and its exit code."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import httpx

from patience import PATIENCE_SECONDS

START_SECONDS = DEADLINE_SECONDS = PATIENCE_SECONDS
PORTS = ("--port=0", "--management-port=0")


@dataclass
class ServingProcess:
    """A running server and what it wrote."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind, whatever the test has come to."""
        self.process.kill()
        self.process.wait(DEADLINE_SECONDS)
        self.log.close()

    @property
    def output(self) -> str:
        return Path(self.log.name).read_text("utf-8", "replace")

    @property
    def url(self) -> str:
        """Where the API is."""
        return self._address(r"serving \S+ on (http://\S+)")

    @property
    def management_url(self) -> str:
        return self._address(r"management on (http://\S+)")

    def _address(self, pattern: str) -> str:
        found = re.search(pattern, self.output)
        assert found, self.output
        return found[1]

    def management(self, path: str) -> httpx.Response:
        return httpx.get(self.management_url + path, timeout=DEADLINE_SECONDS)

    def load(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.management("/load").json()
        return answer

    def flush(self) -> dict[str, Any]:
        """Have the prefix cache forgotten."""
        answer: dict[str, Any] = httpx.post(self.management_url + "/flush", timeout=DEADLINE_SECONDS).json()
        return answer

    def until(self, condition: Callable[[], object], what: str, seconds: float = DEADLINE_SECONDS) -> None:
        """Wait for something that must happen soon, while the process lives."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"it has ended: {self.output}"
            assert time.monotonic() < deadline, f"in vain: {what}\n{self.output}"
            time.sleep(0.02)

    def exit_code(self) -> int:
        """Wait for the end."""
        return self.process.wait(DEADLINE_SECONDS)


def start(model: Path | str, *flags: str, environment: dict[str, str] | None = None) -> ServingProcess:
    """Start `octavo serve` on free ports."""
    return launch("-m", "octavo_engine", "serve", str(model), *PORTS, *flags, environment=environment)


def launch(*arguments: str, environment: dict[str, str] | None = None) -> ServingProcess:
    """Start Python with `arguments`: something that serves and logs as `octavo serve` does."""
    log = tempfile.NamedTemporaryFile(prefix="octavo-serve-", suffix=".log")  # noqa: SIM115 (it lives with the process)
    return ServingProcess(subprocess.Popen([sys.executable, *arguments], stdout=log, stderr=log, env=environment), log)


@contextmanager
def serving_process(model: Path, *flags: str) -> Iterator[ServingProcess]:
    """A server that is ready, and is gone afterwards."""
    with start(model, *flags) as server:
        server.until(lambda: " serving " in server.output, "it serves", START_SECONDS)
        yield server
