"""Guesses what a sequence says next: what came the last time that its latest tokens stood together.

Answers repeat: what a prompt says, a name, the keys of the object before, a line of code. A guess costs nothing until a
step computes it, so each is held against what then comes whether it was computed or not, and the share of those that
come true is known before the first is paid for.
"""

from __future__ import annotations

from collections.abc import Iterable

LONG, SHORT = 4, 2  # tokens that stand together: fewer are found where nothing repeats
FIRST_TRUST = 0.5
LEARNING_RATE = 0.1


class Lookup:
    """The guesses for one sequence. Its tokens are kept as characters of a string, in which C searches."""

    __slots__ = ("_next", "_text", "trust")

    def __init__(self, tokens: Iterable[int]) -> None:
        self.trust = FIRST_TRUST  # the share of guesses that come true, the latest counting most
        self._text = "".join(map(chr, tokens))
        self._next: int | None = None  # the place of the character that is the next guess
        self._search()

    def __len__(self) -> int:
        """Tokens that it knows."""
        return len(self._text)

    def learn(self, tokens: Iterable[int]) -> None:
        """These come after those that it knows."""
        for token in tokens:
            self._learn(chr(token))

    def guess(self, most: int) -> tuple[int, ...]:
        """Up to `most` tokens that may come next; none where nothing like the latest tokens was there before."""
        if self._next is None:
            return ()
        text, period = self._text[self._next :], len(self._text) - self._next
        guessed = (text * (most // period + 1))[:most] if period < most else text[:most]  # what repeats, goes on
        return tuple(map(ord, guessed))

    def _learn(self, token: str) -> None:
        guessed, self._text = self._next, self._text + token
        if guessed is not None:
            right = self._text[guessed] == token
            self.trust += LEARNING_RATE * (right - self.trust)
            if right:
                self._next = guessed + 1
                return
        self._search()

    def _search(self) -> None:
        text = self._text
        for size in (LONG, SHORT):
            found = text.rfind(text[-size:], 0, len(text) - 1)
            if found >= 0:
                self._next = found + size
                return
        self._next = None
