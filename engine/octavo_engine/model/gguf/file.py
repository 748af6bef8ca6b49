"""The GGUF container: its metadata and where each tensor lies. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

Reads the header in one pass (the reference reader builds an array per string: seconds for a vocabulary), from a memory
map or from anything else that gives bytes by position. Every length is checked against the file's size before it is
used, so a damaged file cannot ask for memory.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from octavo_engine.errors import CheckpointInvalid, ModelNotFound
from octavo_engine.model.file_bytes import FileBytes

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
SCALARS = {  # metadata value type -> struct format
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of the file, as its header describes it."""

    name: str
    shape: tuple[int, ...]  # outermost first, as torch has it (the file stores innermost first)
    kind: int  # ggml's number of the storage type
    offset: int  # bytes from the start of the file


class GgufFile:
    """A GGUF file's header: `metadata` by key, `tensors` by name; `data` is the file's content."""

    def __init__(self, name: str, data: FileBytes) -> None:
        self.name, self.data, self._size = name, data, len(data)
        try:
            self._read_header()
        except (struct.error, UnicodeDecodeError, RecursionError) as error:
            raise self.invalid(f"the header is damaged: {error}") from None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map a file and read its header; raises CheckpointInvalid, or ModelNotFound where we may not read it."""
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch wants it writable
        except OSError as error:
            raise ModelNotFound(f"{path.name} cannot be read: {error.strerror}") from None
        except ValueError:
            raise CheckpointInvalid(f"{path.name}: the file is empty") from None
        return cls(path.name, data)

    def invalid(self, problem: str) -> CheckpointInvalid:
        """An error that names the file."""
        return CheckpointInvalid(f"{self.name}: {problem}")

    def _read_header(self) -> None:
        self._at = 0
        if self._bytes(4) != MAGIC:
            raise self.invalid("not a GGUF file")
        version = self._scalar("<I")
        if version not in VERSIONS:
            raise self.invalid(f"GGUF version {version} is not supported; supported are 2 and 3, little-endian")
        num_tensors, num_keys = self._count(), self._count()
        self.metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("<I"))
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise self.invalid(f"general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        self.tensors = {name: TensorInfo(name, shape, kind, start + offset) for name, shape, kind, offset in infos}
        if len(self.tensors) != len(infos):
            raise self.invalid("a tensor is there twice")

    def _bytes(self, size: int) -> bytes:
        if size > self._size - self._at:
            raise self.invalid("the header is truncated")
        self._at += size
        return self.data[self._at - size : self._at]

    def _scalar(self, format: str) -> Any:
        (value,) = struct.unpack(format, self._bytes(struct.calcsize(format)))
        return value

    def _count(self) -> int:
        """A number of things that each take at least a byte."""
        count: int = self._scalar("<Q")
        if count > self._size - self._at:
            raise self.invalid(f"the header claims {count} entries, more than the file has room for")
        return count

    def _string(self) -> str:
        return self._bytes(self._count()).decode()

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            return self._array(self._scalar("<I"), self._count())
        if kind in SCALARS:
            return self._scalar(SCALARS[kind])
        raise self.invalid(f"metadata of unknown type {kind}")

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind not in SCALARS:
            return [self._value(kind) for _ in range(count)]
        code = SCALARS[kind][1]
        return list(struct.unpack(f"<{count}{code}", self._bytes(count * struct.calcsize("<" + code))))

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        dims: int = self._scalar("<I")
        if not 1 <= dims <= MAX_DIMS:
            raise self.invalid(f"tensor {name} has {dims} dimensions")
        shape = tuple(reversed([self._scalar("<Q") for _ in range(dims)]))
        if math.prod(shape) >= 1 << 48:
            raise self.invalid(f"tensor {name} has the shape {shape}")
        return name, shape, self._scalar("<I"), self._scalar("<Q")
