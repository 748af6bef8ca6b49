"""A file that is being written: its bytes in any order, and a journal of those that are safely there.

The journal is a text file of lines `start end`, appended only after the bytes they speak of are on the disk, so that it
is never ahead of them: not after a kill -9, and not after a power cut. A torn last line does not count.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """The bytes `[start, end)`."""

    start: int
    end: int


class PartFile:
    """`path` with room for `size` bytes, and `path.journal`. Thread-safe: each thread writes spans of its own."""

    def __init__(self, path: Path, size: int) -> None:
        """Open or create both. A link in their place is refused: it could lead anywhere."""
        self.path, self.size = path, size
        self._journal_path = path.with_name(path.name + ".journal")
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        self._journal = os.open(
            self._journal_path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
        )
        if os.fstat(self._file).st_size != size:  # new, or the journal speaks of another file
            os.ftruncate(self._journal, 0)
            os.ftruncate(self._file, 0)
            os.ftruncate(self._file, size)  # a hole: it takes no room yet

    def missing(self, longest: int) -> list[Span]:
        """The spans that are not there yet, none longer than `longest` bytes."""
        gaps, position = [], 0
        for span in sorted(self._recorded()):
            gaps.append(Span(position, span.start))
            position = max(position, span.end)
        gaps.append(Span(position, self.size))
        return [
            Span(start, min(gap.end, start + longest)) for gap in gaps for start in range(gap.start, gap.end, longest)
        ]

    def present(self) -> int:
        """Bytes that are there."""
        return self.size - sum(gap.end - gap.start for gap in self.missing(max(1, self.size)))

    def write(self, offset: int, chunk: bytes) -> None:
        """Put bytes into place; raises OSError, also when the disk is full."""
        view = memoryview(chunk)
        while view:
            written = os.pwrite(self._file, view, offset)
            offset, view = offset + written, view[written:]

    def record(self, span: Span) -> None:
        """From now on these bytes count as there, whatever happens."""
        if span.start < span.end:
            os.fdatasync(self._file)
            with self._lock:
                os.write(self._journal, b"%d %d\n" % (span.start, span.end))

    def start_over(self) -> None:
        """Forget everything."""
        with self._lock:
            os.ftruncate(self._journal, 0)

    def close(self) -> None:
        """Let go; both files stay."""
        os.close(self._file)
        os.close(self._journal)

    def move_to(self, target: Path) -> None:
        """Become `target`, replacing what is there; the journal goes."""
        os.fsync(self._file)
        self.path.replace(target)
        self._journal_path.unlink()

    def _recorded(self) -> Iterable[Span]:
        for line in self._journal_path.read_bytes().split(b"\n")[:-1]:
            start, _, end = line.partition(b" ")
            if start.isdigit() and end.isdigit() and int(start) < int(end) <= self.size:
                yield Span(int(start), int(end))
