"""One at a time, across processes and checkouts, by a lock on a file that its holder's end gives back."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.steps import note


@contextmanager
def taken(lock: Path, waiting: str) -> Iterator[None]:
    """Hold `lock` while the block runs; who has to wait for it says `waiting` once."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(waiting)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
