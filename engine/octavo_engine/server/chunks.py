"""A stream's chunks as bytes. Nearly all of them differ in a few characters of text: what stands around these is
written once for each choice, and is then only put together."""

from __future__ import annotations

import json
import uuid
from json.encoder import encode_basestring

from octavo_engine.output import Delta
from octavo_engine.server.answers import Json, Writer
from octavo_engine.server.event_stream import DONE, event, one_line


class Chunks:
    """Writes the chunks of one stream. `common` are the fields that every chunk has beside the envelope's."""

    def __init__(self, writer: Writer, common: Json) -> None:
        self._writer = writer
        self._common = common
        self._frames: dict[int, tuple[str, str]] = {}

    def opening(self, choices: int) -> bytes:
        """What each choice begins with; nothing where the form has no beginning."""
        return b"".join(self._event(self._writer.form.opening(index)) for index in range(choices))

    def pieces(self, deltas: list[tuple[int, Delta]]) -> bytes:
        """One chunk for each delta that says something, in order."""
        return b"".join(
            self.piece(index, delta)
            for index, delta in deltas
            if delta.text or delta.tokens or delta.finish_reason is not None
        )

    def closing(self, counts: Json) -> bytes:
        """What the stream ends with: the usage, for a client that asked for it, and the mark of the end."""
        return (event(self._writer.last(counts)) if "usage" in self._common else b"") + DONE

    def piece(self, index: int, delta: Delta) -> bytes:
        """The chunk of one delta of a choice; nothing while the form has nothing to say."""
        if not delta.text or delta.finish_reason is not None or not self._writer.form.verbatim:
            return self.whole(index, delta)
        frame = self._frames.get(index)
        if frame is None:
            frame = self._frames[index] = self._frame(index)
        return f"{frame[0]}{one_line(encode_basestring(delta.text))}{frame[1]}".encode()

    def whole(self, index: int, delta: Delta) -> bytes:
        """The same, field by field: what `piece` is measured against, and what it does when more than text changes."""
        return self._event(self._writer.form.piece(index, delta))

    def _frame(self, index: int) -> tuple[str, str]:
        """What stands before and after the text of a choice: an ordinary chunk, cut at a word that nobody has sent."""
        word = uuid.uuid4().hex
        before, after = self.whole(index, Delta(word)).decode().split(json.dumps(word))
        return before, after

    def _event(self, choice: Json | None) -> bytes:
        return b"" if choice is None else event(self._writer.chunk(choice) | self._common)
