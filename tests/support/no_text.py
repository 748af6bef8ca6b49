"""A detokenizer for tests that look at tokens only."""

from __future__ import annotations


class NoText:
    """Nobody reads the answers."""

    stopped = None

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""
