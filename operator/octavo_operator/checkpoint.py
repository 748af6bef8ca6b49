"""What the engine's programs tell of a model on its way: what a preflight found, how far a fetch is. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_MAX_REVISION = 255
_MAX_BYTES = 1 << 53


@dataclass(frozen=True)
class Checkpoint:
    """A model as its source had it at one moment.

    Attributes:
        revision: what pins it, a commit or a digest; empty where the source has no such thing.
        bytes: size of all files that the engine needs; files: how many.
    """

    revision: str = ""
    bytes: int = 0
    files: int = 0

    def document(self) -> dict[str, Any]:
        """As JSON, in the form that the preflight itself reports."""
        return {"revision": self.revision, "bytes": self.bytes, "files": self.files}


@dataclass(frozen=True)
class Progress:
    """How far the slowest fetch of the model is, in bytes; `total` is 0 while the source has not said."""

    done: int = 0
    total: int = 0

    @property
    def percent(self) -> int | None:
        """Whole percents; None while the total is not known."""
        return min(100, self.done * 100 // self.total) if self.total else None


def read_checkpoint(document: Any) -> Checkpoint | None:
    """Reads `document`'s form; None when it is something else."""
    if not isinstance(document, dict):
        return None
    revision: Any = document.get("revision")
    size: Any = document.get("bytes")
    files: Any = document.get("files")
    if not (revision is None or isinstance(revision, str)) or len(revision or "") > _MAX_REVISION:
        return None
    if not (_is_count(size) and _is_count(files)):
        return None
    return Checkpoint(revision or "", size, files)


def read_report(words: str) -> Checkpoint | None:
    """Reads the last line of a preflight's termination message; None when it reports nothing."""
    try:
        return read_checkpoint(json.loads(words.strip().rpartition("\n")[2]))
    except (ValueError, RecursionError):
        return None


def read_progress(body: bytes) -> Progress | None:
    """Reads the JSON of a fetch's `/progress`; None when it is something else."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    done: Any = document.get("bytes_done")
    total: Any = document.get("bytes_total")
    return Progress(min(done, total), total) if _is_count(done) and _is_count(total) else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_BYTES
