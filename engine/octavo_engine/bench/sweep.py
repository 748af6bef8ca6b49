"""One setting of `octavo serve` at several values: a server for each, started here on loopback, measured, and stopped.

Values take their turns one after another, with the whole machine to themselves; everything else stays as it is.
"""

from __future__ import annotations

import asyncio
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from octavo_engine.config import ServeSettings
from octavo_engine.errors import InvalidConfiguration, OctavoError

PROGRAM = (sys.executable, "-m", "octavo_engine", "serve")
OWN = ("--port", "--management-port", "--host", "--management-host")
LOOPBACK = ("--host=127.0.0.1", "--port=0", "--management-host=127.0.0.1", "--management-port=0", "--log-level=info")
STOP_SECONDS = 60.0
LOOK_SECONDS = 0.1
TOLD = {"api": re.compile(r" serving \S+ on (http://\S+)"), "management": re.compile(r" management on (http://\S+)")}


class NotStarted(OctavoError):
    """A server of the sweep did not come up; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The flag without its dashes, and its values."""

    flag: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, serve: Sequence[str]) -> Self:
        """Read FLAG=VALUE,VALUE; each value meets the parser of `octavo serve`. Raises InvalidConfiguration."""
        flag, _, values = text.removeprefix("--").partition("=")
        made = cls(flag, tuple(value for value in values.split(",") if value))
        if not flag or len(made.values) < 2 or len(set(made.values)) < len(made.values):
            raise InvalidConfiguration(
                f"--sweep is {text!r}; it must be like max-num-seqs=64,128,256, with different values"
            )
        for argument in serve:
            if argument.split("=")[0] in (*OWN, f"--{flag}", f"--no-{flag}"):
                raise InvalidConfiguration(f"{argument.split('=')[0]} is set by the sweep: leave it out after --")
        for value in made.values:
            ServeSettings.parse([*serve, made.argument(value)])
        return made

    def argument(self, value: str) -> str:
        """A value as a flag; `true` and `false` are those of a switch."""
        switch = {"true": f"--{self.flag}", "false": f"--no-{self.flag}"}
        return switch.get(value.lower(), f"--{self.flag}={value}")


@dataclass(frozen=True, slots=True)
class Running:
    """Where a server is."""

    url: str
    management_url: str


@asynccontextmanager
async def serving(
    arguments: Sequence[str], seconds: float, stop: asyncio.Event, program: Sequence[str] = PROGRAM
) -> AsyncIterator[Running]:
    """A server that is ready, and is gone afterwards; raises NotStarted, also when `stop` is set before."""
    with tempfile.NamedTemporaryFile(prefix="octavo-bench-", suffix=".log") as log:
        process = await asyncio.create_subprocess_exec(
            *program, *arguments, *LOOPBACK, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,  # Ctrl-C is for the measurement, which then stops the server
        )  # fmt: skip
        try:
            yield await _ready(process, Path(log.name), seconds, stop)
        finally:
            await _stop(process)


async def _ready(process: asyncio.subprocess.Process, log: Path, seconds: float, stop: asyncio.Event) -> Running:
    try:
        async with asyncio.timeout(seconds):
            while True:
                text = log.read_text("utf-8", "replace")
                found = {name: pattern.search(text) for name, pattern in TOLD.items()}
                if (api := found["api"]) and (management := found["management"]):
                    return Running(api[1], management[1])
                if process.returncode is not None:
                    raise NotStarted(f"it ended with {process.returncode}; its last words:\n{_end(text)}")
                if stop.is_set():
                    raise NotStarted("stopped before it was ready")
                await asyncio.sleep(LOOK_SECONDS)
    except TimeoutError as error:
        last = _end(log.read_text("utf-8", "replace"))
        raise NotStarted(f"it was not ready after {seconds:g} s (--start-seconds); its last words:\n{last}") from error


def _end(text: str, lines: int = 5) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])


async def _stop(process: asyncio.subprocess.Process) -> None:
    """As Kubernetes does it: a signal, time to finish, the end."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            process.kill()
    await process.wait()
