"""The key-value header of a GGUF file, read in one pass without numpy.

The gguf library builds an array view for each string of a vocabulary, which takes seconds; here the strings suffice.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from octavo_engine.errors import CheckpointInvalid

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DEPTH = 4  # arrays of arrays are legal, and no model has them


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys and values of a little-endian GGUF file, version 2 or 3; raises CheckpointInvalid for a damaged one."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data).header()
    except (struct.error, ValueError, UnicodeDecodeError) as error:
        raise CheckpointInvalid(f"{path.name}: the GGUF header is damaged or truncated") from error


class _Cursor:
    """A position in the file; every read moves it, and a read past the end raises struct.error or ValueError."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> dict[str, Any]:
        if self._data[:4] != b"GGUF":
            raise ValueError("no GGUF magic")
        self._at = 4
        if self._scalar("I") not in (2, 3):
            raise ValueError("unknown GGUF version")
        self._scalar("Q")  # the number of tensors: theirs is another reader's job
        return {self._string(): self._value(self._scalar("I")) for _ in range(self._scalar("Q"))}

    def _scalar(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self._data, self._at)[0]
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        start, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise ValueError("a string passes the end of the file")
        return self._data[start : self._at].decode("utf-8", errors="surrogateescape")

    def _value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY and depth < _MAX_DEPTH:
            return self._array(depth + 1)
        if kind not in _SCALARS:
            raise ValueError("unknown value type")
        return self._scalar(_SCALARS[kind])

    def _array(self, depth: int) -> list[Any]:
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind not in _SCALARS:
            return [self._value(kind, depth) for _ in range(count)]
        code = f"<{count}{_SCALARS[kind]}"
        values = list(struct.unpack_from(code, self._data, self._at))
        self._at += struct.calcsize(code)
        return values
