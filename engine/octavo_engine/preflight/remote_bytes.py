"""A remote file as bytes by position, of which only what is looked at is fetched."""

from __future__ import annotations

from collections.abc import Callable

from octavo_engine.errors import CheckpointInvalid

BLOCK_BYTES = 1 << 20  # a safetensors header is a part of one; a GGUF vocabulary is a few
MAX_HEAD_BYTES = 256 << 20  # far above any header: one that asks for more is damaged or hostile


class RemoteBytes:
    """`name`, of `size` bytes. Its head is read in blocks and kept; what lies far behind is read as it is asked for."""

    def __init__(self, name: str, size: int, read: Callable[[int, int], bytes]) -> None:
        self._name, self._size, self._read = name, size, read
        self._head = bytearray()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice, /) -> bytes:
        start, end, _ = part.indices(self._size)
        if start >= end:
            return b""
        if start > len(self._head) + BLOCK_BYTES:
            return self._read(start, end)
        if end > len(self._head):
            self._extend(end)
        return bytes(self._head[start:end])

    def _extend(self, end: int) -> None:
        if end > MAX_HEAD_BYTES:
            raise CheckpointInvalid(f"{self._name}: the header is larger than {MAX_HEAD_BYTES >> 20} MiB")
        begins = len(self._head)
        self._head += self._read(begins, min(self._size, max(end, begins + BLOCK_BYTES)))
