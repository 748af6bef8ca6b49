"""Standard output that a test can hold up, to see that nobody waits for whoever reads it."""

from __future__ import annotations

import io
import threading

from patience import PATIENCE_SECONDS

DEADLINE_SECONDS = PATIENCE_SECONDS


class Out(io.StringIO):
    """What is written to it waits while `gate` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def write(self, text: str) -> int:
        assert self.gate.wait(DEADLINE_SECONDS)
        return super().write(text)
