"""The clock of the running event loop, which a test moves on: a deadline is met, and nobody has waited for it.

So deadlines in tests may be long. What has to come in time does, on a machine that stands still for some seconds, too.
"""

from __future__ import annotations

import asyncio

import pytest


class MovedClock:
    """Ahead of the real one by as much as it was moved on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop, self._ahead = asyncio.get_running_loop(), 0.0
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + self._ahead)

    def move_on(self, seconds: float) -> None:
        """What is due by then is done in the loop's next turn."""
        self._ahead += seconds
