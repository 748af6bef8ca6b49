"""A file's bytes by position, wherever they lie: in a memory map, or at a source that answers ranges."""

from __future__ import annotations

from typing import Protocol


class FileBytes(Protocol):
    """A whole file, of which parts are taken by position."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...
