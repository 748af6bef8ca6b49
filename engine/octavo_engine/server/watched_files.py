"""Whether a file is another than before, also where a link is turned to a new one, as the kubelet does with Secrets."""

from __future__ import annotations

import os
from pathlib import Path

Stamp = tuple[int, int, int]
"""When it was changed, in nanoseconds; its bytes; and its inode, which another file behind the same name has not."""


def stamp(path: str | Path) -> Stamp | None:
    """Of the file that a path leads to; None: it leads nowhere.

    Taken before a file is read, so that what changes meanwhile is read again.
    """
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
