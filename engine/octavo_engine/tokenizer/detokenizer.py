"""Tokens to text, one at a time: nothing is sent that a later token could change or a stop string take back."""

from __future__ import annotations

import codecs

from octavo_engine.tokenizer.core import Tokenizer


class Detokenizer:
    """The text of one sequence. `push` and `finish` joined equal `decode` of all ids, cut at the stop string."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
    ) -> None:
        """`stop` strings end the text where the first of them is complete; `include_stop` keeps it in the text."""
        self._tokenizer = tokenizer
        self._skipped: frozenset[int] = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._stop = tuple(text for text in stop if text)
        self._include_stop = include_stop
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._in_character = False  # the bytes so far end within one
        self._held = ""  # decoded, but perhaps the beginning of a stop string
        self._at_start = tokenizer.strips_first_space
        self.stopped: str | None = None  # the stop string that ended the text

    def push(self, token_id: int) -> str:
        """Add a token; returns the text that is now certain, often empty, and always empty after a stop string."""
        if token_id in self._skipped:
            return ""
        # Nearly every token is whole characters, and nearly every sequence has no stop strings: then this is all.
        text = None if self._in_character else self._tokenizer.whole_text(token_id)
        if text is None:
            text = self._utf8.decode(self._tokenizer.token_bytes(token_id))
            self._in_character = bool(self._utf8.getstate()[0])
        return self._extend(text) if self._stop or self._at_start else text

    def finish(self) -> str:
        """What was held back, for a sequence that ended without a stop string; half a character becomes U+FFFD."""
        text = self._extend(self._utf8.decode(b"", final=True))
        held, self._held = self._held, ""
        return text + held

    def _extend(self, text: str) -> str:
        if self.stopped is not None or not text:
            return ""
        if self._at_start:
            self._at_start, text = False, text.removeprefix(" ")
        self._held += text
        return self._cut_at_stop(len(self._held) - len(text)) if self._stop else self._release(len(self._held))

    def _cut_at_stop(self, known: int) -> str:
        """Release what no stop string can begin in. The first `known` characters held were searched before."""
        found = [(at + len(stop), at, stop) for stop in self._stop if (at := self._find(stop, known)) >= 0]
        if not found:
            return self._release(len(self._held) - self._possible_beginning())
        end, start, self.stopped = min(found)
        text = self._release(end if self._include_stop else start)
        self._held = ""
        return text

    def _find(self, stop: str, known: int) -> int:
        """Where the first new occurrence begins; one that ends within the known part would have been found before."""
        return self._held.find(stop, max(0, known - len(stop) + 1))

    def _possible_beginning(self) -> int:
        """Length of the longest end of the held text that is the beginning of a stop string."""
        longest = min(len(self._held), max(map(len, self._stop)) - 1)
        ends = (size for size in range(longest, 0, -1) if self._begins_a_stop(self._held[-size:]))
        return next(ends, 0)

    def _begins_a_stop(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stop)

    def _release(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text
