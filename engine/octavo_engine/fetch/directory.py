"""The destination: finished files, and beside them `.octavo` with what is known about them.

.octavo/manifest.json   written last: the directory is complete, and this is what it holds
.octavo/lock            held by the one process that writes
.octavo/ID.part         a file on its way; ID is its identity, so a part is only ever continued with the same bytes
.octavo/ID.done         a file that was verified: it is in its place, or (when we were killed just then) still the part
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo_engine.errors import DiskFull, InvalidConfiguration
from octavo_engine.fetch.part import PartFile
from octavo_engine.fetch.remote import RemoteFile
from octavo_engine.fetch.selection import NESTED

log = logging.getLogger(__name__)

STATE = ".octavo"
FORMAT = 1
LOCK_SECONDS = 0.2  # between two looks at a lock that another process holds
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)  # some network file systems have none
GIB = 2.0**30


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished file, as the manifest has it. `verified` is the hash that was compared, or `size`."""

    name: str
    size: int
    identity: str
    verified: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a complete directory holds."""

    source: str
    revision: str
    files: tuple[Entry, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)


class Directory:
    """One destination. Whoever changes it holds `locked`."""

    def __init__(self, path: Path) -> None:
        self.path, self._state = path, path / STATE

    def create(self) -> None:
        """Make it and its state; raises InvalidConfiguration when it cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._state.mkdir(exist_ok=True)
        except OSError as error:
            raise InvalidConfiguration(f"--destination cannot be written: {error.strerror}") from None
        if self._state.is_symlink() or not os.access(self._state, os.W_OK | os.X_OK):
            raise InvalidConfiguration(f"--destination cannot be written: {STATE} in it is not ours")

    @contextmanager
    def locked(self, on_wait: Callable[[], object]) -> Iterator[None]:
        """Be the only writer; `on_wait` is called once if another is at work. The kernel frees a dead one's lock."""
        lock = os.open(self._state / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            if not _try_lock(lock):
                on_wait()
                while not _try_lock(lock):
                    time.sleep(LOCK_SECONDS)
            yield
        finally:
            os.close(lock)

    def manifest(self) -> Manifest | None:
        """What the directory holds completely; None unless every file is there with its size."""
        try:
            document: dict[str, Any] = json.loads((self._state / "manifest.json").read_bytes())
            if document.pop("format") != FORMAT:
                return None
            manifest = Manifest(**document | {"files": tuple(Entry(**entry) for entry in document["files"])})
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return manifest if all(self._is_in_place(entry.name, entry.size) for entry in manifest.files) else None

    def complete(self, manifest: Manifest) -> None:
        """Say that everything is there."""
        document = {"format": FORMAT} | asdict(manifest)
        self._write(self._state / "manifest.json", json.dumps(document, indent=1) + "\n")

    def begin(self, files: Iterable[RemoteFile]) -> None:
        """From here on the directory is incomplete. What of ours does not belong to `files` goes, old parts too."""
        known, wanted = {file.identity for file in files}, {file.name for file in files}
        old = self.manifest()
        (self._state / "manifest.json").unlink(missing_ok=True)
        for entry in old.files if old else ():
            if entry.name not in wanted:
                (self.path / entry.name).unlink(missing_ok=True)
        for leftover in self._state.iterdir():
            if leftover.suffix in (".part", ".journal", ".done", ".new") and leftover.name.split(".")[0] not in known:
                leftover.unlink()

    def part(self, file: RemoteFile) -> PartFile:
        """The part of a file, with what is there already; raises OSError."""
        return PartFile(self._state / f"{file.identity}.part", file.size)

    def verified(self, file: RemoteFile) -> str | None:
        """How a finished file was verified; None for one that is not finished."""
        try:
            how = (self._state / f"{file.identity}.done").read_text()
        except OSError:
            return None
        part = self._state / f"{file.identity}.part"
        if part.is_file():  # we were killed between the record and the move
            with_part = PartFile(part, file.size)
            self.put(file, with_part, how)
            with_part.close()
        return how if self._is_in_place(file.name, file.size) else None

    def put(self, file: RemoteFile, part: PartFile, how: str) -> None:
        """A part was verified: it becomes the file. Recorded first, so that a kill in between loses nothing."""
        place = self._place(file.name)
        self._write(self._state / f"{file.identity}.done", how)
        part.move_to(place)
        _sync(place.parent)

    def check_room(self, files: Iterable[RemoteFile]) -> None:
        """Raise DiskFull unless what is still to come fits."""
        needed = sum(file.size - self._held(file) for file in files)
        free = shutil.disk_usage(self.path).free
        if needed > free:
            raise DiskFull(
                f"the destination needs {needed / GIB:.2f} GiB more, has {free / GIB:.2f} GiB: use a larger volume"
            )

    def _held(self, file: RemoteFile) -> int:
        """Bytes on the disk that this file will not need again."""
        if self.verified(file) is not None:
            return file.size
        try:
            return min(file.size, (self._state / f"{file.identity}.part").stat().st_blocks * 512)
        except OSError:
            return 0

    def _place(self, name: str) -> Path:
        """Where a file goes; its folder is made. Raises InvalidConfiguration where that would lead anywhere else."""
        place = self.path / name
        if place.parent != self.path:
            with suppress(FileExistsError):  # as a file: the next line sees it
                place.parent.mkdir(exist_ok=True)
            if place.parent.is_symlink() or not place.parent.is_dir():
                raise InvalidConfiguration(f"--destination cannot be written: {place.parent.name} in it is not ours")
            _sync(self.path)
        return place

    def _is_in_place(self, name: str, size: int) -> bool:
        place = self.path / name
        if place.name != name and name not in NESTED:
            return False  # not one of ours
        try:
            return (
                not place.is_symlink()
                and not (name in NESTED and place.parent.is_symlink())
                and place.is_file()
                and place.stat().st_size == size
            )
        except OSError:
            return False

    def _write(self, path: Path, text: str) -> None:
        """Whole or not at all."""
        scratch = path.with_name(path.name + ".new")
        with scratch.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        _sync(path.parent)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            return False
        log.warning("this file system has no locks: let nobody else write to the directory")
    return True


def _sync(directory: Path) -> None:
    """Make names durable, where the file system can."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
