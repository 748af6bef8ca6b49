"""Where the result goes: written beside its place, and moved there in one step once it is whole.

Whatever ends the process in between, OUT is either as it was or a complete checkpoint. What was half written lies in a
hidden folder beside it, which goes with every end but the hardest (SIGKILL, a power cut).
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from octavo_engine.errors import DiskFull, InvalidConfiguration

GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Scratch:
    """Two folders on the output's file system."""

    result: Path  # what becomes the output
    spare: Path  # what the library puts aside meanwhile


def check_free(out: Path) -> None:
    """Raise InvalidConfiguration unless `out` can be made, or is an empty directory."""
    try:
        there = next(out.iterdir(), None)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidConfiguration(f"{out} cannot be the output: {error.strerror}") from None
    if there is not None:
        raise InvalidConfiguration(f"{out} is not empty: name a directory that is, or that is not there yet")


def check_room(folder: Path, needed: int) -> None:
    """Raise DiskFull unless `folder` has room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DiskFull(
            f"quantizing may write {needed / GIB:.2f} GiB beside the output, and {free / GIB:.2f} GiB are free"
        )


@contextmanager
def written_beside(out: Path, needed: int) -> Iterator[Scratch]:
    """Folders to write to. When the block ends well, `result` becomes `out`; else all goes.

    Args:
        needed: bytes that may be written.

    Raises InvalidConfiguration or DiskFull before, and the former where `out` is no longer free in the end.
    """
    out = out.absolute()  # the working directory may be another before this ends
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    except OSError as error:
        raise InvalidConfiguration(f"{out} cannot be written: {error.strerror}") from None
    with _removed(folder):
        check_room(folder, needed)
        scratch = Scratch(folder / "result", folder / "spare")
        scratch.result.mkdir()  # in a folder of its own, which has the usual rights where the one around it is private
        scratch.spare.mkdir()
        yield scratch
        _move(scratch.result, out)


def _move(result: Path, out: Path) -> None:
    """In one step, and only once it would outlast a power cut."""
    for place in (*sorted(result.rglob("*")), result):
        _sync(place)
    try:
        result.rename(out)  # over an empty directory, too, and over nothing else
    except OSError as error:
        raise InvalidConfiguration(f"{out} can no longer be written: {error.strerror}") from None
    _sync(out.parent)


def _sync(place: Path) -> None:
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _removed(folder: Path) -> Iterator[None]:
    """Remove it in the end, and before a signal ends the process, which then does what it would have done."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def leave(number: int, frame: FrameType | None) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in before:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        shutil.rmtree(folder, ignore_errors=True)
