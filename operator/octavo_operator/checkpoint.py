"""What a preflight found out about a model: the value, and how it is read from the program's last words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_MAX_REVISION = 255


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


def read_checkpoint(document: Any) -> Checkpoint | None:
    """Reads `document`'s form; None when it is something else."""
    if not isinstance(document, dict):
        return None
    revision, size, files = (document.get(key) for key in ("revision", "bytes", "files"))
    if not (revision is None or isinstance(revision, str)) or len(revision or "") > _MAX_REVISION:
        return None
    if not all(isinstance(count, int) and not isinstance(count, bool) and count >= 0 for count in (size, files)):
        return None
    return Checkpoint(revision or "", size or 0, files or 0)


def read_report(words: str) -> Checkpoint | None:
    """Reads the last line of a preflight's termination message; None when it reports nothing."""
    try:
        return read_checkpoint(json.loads(words.strip().rpartition("\n")[2]))
    except (ValueError, RecursionError):
        return None
