"""A stream whose every chunk has the token counts so far: `stream_options.continuous_usage_stats`, vLLM's name for it.

Load clients and gateways ask for it. Each of these chunks is written out whole, so it costs more than one of `Chunks`.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.output import Delta
from octavo_engine.request import Request
from octavo_engine.server.answers import Json, Writer, usage
from octavo_engine.server.chunks import Chunks
from octavo_engine.server.event_stream import event


class CountedChunks(Chunks):
    """Counts the tokens of what it has written, of all choices together: the engine may be ahead of its reader."""

    def __init__(self, writer: Writer, requests: Sequence[Request], copies: int) -> None:
        super().__init__(writer, {"usage": None})
        self._requests = requests
        self._copies = copies
        self._written = 0

    def piece(self, index: int, delta: Delta) -> bytes:
        """The chunk of one delta, with all tokens up to its own."""
        self._written += len(delta.tokens)
        return self.whole(index, delta)

    def _event(self, choice: Json | None) -> bytes:
        return b"" if choice is None else event(self._writer.chunk(choice) | {"usage": self._counts()})

    def _counts(self) -> Json:
        counts = usage(self._requests, self._copies)
        return counts | {"completion_tokens": self._written, "total_tokens": counts["prompt_tokens"] + self._written}
