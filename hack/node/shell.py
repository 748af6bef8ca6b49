"""Running other programs: output into a log file, errors with the log's last lines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

Argument = str | os.PathLike[str]


class NodeError(Exception):
    """Something a person has to act on; the message says what."""


class CommandError(NodeError):
    """A program ended with an error; the message carries the end of what it printed."""


class TimeoutReached(NodeError):
    """A condition did not come true before its deadline."""


def run(
    argv: Sequence[Argument],
    *,
    log: Path | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: float = 60.0,
) -> str:
    """Run a program and return its standard output; with `log`, all output is appended there and "" is returned.

    `env` is added to the environment. Raises CommandError when the program fails, is missing or exceeds `timeout`
    seconds.
    """
    command = [os.fspath(argument) for argument in argv]
    environment = {**os.environ, **(env or {})}
    try:
        with _output(log) as output:
            done = subprocess.run(
                command,
                check=False,
                cwd=cwd,
                env=environment,
                input=stdin or b"",
                stdout=output,
                stderr=output,
                timeout=timeout,
            )
    except FileNotFoundError as error:
        raise CommandError(f"{command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{_shown(command)} took longer than {timeout:.0f} s") from error
    if done.returncode:
        said = (
            f"the end of {log}:\n{tail(log)}" if log else (done.stderr or done.stdout).decode(errors="replace").strip()
        )
        raise CommandError(f"{_shown(command)} failed: {said}")
    return done.stdout.decode(errors="replace") if log is None else ""


def piped(source: Sequence[str], sink: Sequence[str], timeout: float) -> None:
    """Run two programs at once, the output of `source` being the input of `sink`; the terminal has the errors.

    Raises CommandError when one of them fails, is missing, or the second exceeds `timeout` seconds.
    """
    try:
        with subprocess.Popen(source, stdout=subprocess.PIPE) as giving:
            try:
                done = subprocess.run(sink, check=False, stdin=giving.stdout, capture_output=True, timeout=timeout)
            except BaseException:
                giving.kill()  # nobody reads what it writes any more
                raise
    except FileNotFoundError as error:
        raise CommandError(f"{error.filename} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{_shown(sink)} took longer than {timeout:.0f} s") from error
    if done.returncode:
        raise CommandError(f"{_shown(sink)} failed: {(done.stderr or done.stdout).decode(errors='replace').strip()}")
    if giving.returncode:
        raise CommandError(f"{_shown(source)} ended with {giving.returncode}")


def guarded(command: Callable[[], int]) -> int:
    """Run a command; what a person has to act on is printed as one message, without a traceback."""
    try:
        return command()
    except NodeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; run hack/cluster up again to go on, or hack/cluster down", file=sys.stderr)
        return 130


@contextmanager
def _output(log: Path | None) -> Iterator[IO[bytes] | int]:
    """Where a program's output goes: appended to a log, or to us."""
    if log is None:
        yield subprocess.PIPE
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        yield stream


def tail(log: Path, lines: int = 20) -> str:
    """The last lines of a log, or a remark that there is none."""
    if not log.exists():
        return "(no log)"
    with log.open("rb") as stream:
        stream.seek(0, os.SEEK_END)
        stream.seek(max(0, stream.tell() - 16_384))
        return "\n".join(stream.read().decode(errors="replace").splitlines()[-lines:])


def last_line(log: Path, width: int = 70) -> str:
    """The newest line of a log, cut to `width`: the detail shown during a long build."""
    return tail(log, 1)[:width]


def wait_for(condition: Callable[[], bool], timeout: float, what: str, interval: float = 0.1) -> None:
    """Poll until `condition` holds; raises TimeoutReached naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutReached(f"{what} did not happen within {timeout:.0f} s")
        time.sleep(interval)


def _shown(command: Sequence[str]) -> str:
    text = " ".join(command)
    return text if len(text) <= 160 else text[:157] + "..."
