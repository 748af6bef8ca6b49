"""What a model thinks before it answers: `<think>...</think>`, and then what it says."""

from __future__ import annotations

from collections.abc import Callable

from octavo_engine.server.tools.marked import MarkedText
from octavo_engine.server.tools.message import Message

OPEN, CLOSE = "<think>", "</think>"


class Thinking:
    """Sends thoughts to the message and what is said to `then`, without the marks and the space around them.

    `inside`: the prompt ends with the opening mark, so that the text begins as a thought. Otherwise it does so only if
    it begins with that mark; one further on is text.
    """

    def __init__(self, message: Message, then: Callable[[str], None], *, inside: bool) -> None:
        self._message = message
        self._then = then
        self._thought = MarkedText((CLOSE,), self._think)
        self._held = ""
        self._thinks = False  # a thought has begun
        self._step: Callable[[str], None] = self._in_thought if inside else self._before

    def push(self, char: str) -> None:
        """Take one character."""
        self._step(char)

    def finish(self) -> None:
        """The text has ended."""
        self._say(self._held)
        if thought := self._thought.finish().rstrip():
            self._think(thought)

    def _before(self, char: str) -> None:
        self._held += char
        begun = self._held.lstrip()
        if begun == OPEN:
            self._held, self._step = "", self._in_thought
        elif not OPEN.startswith(begun):
            self._step = self._then
            self._say(self._held)
            self._held = ""

    def _in_thought(self, char: str) -> None:
        if self._thought.push(char):
            self._step = self._after

    def _think(self, text: str) -> None:
        self._message.think(text if self._thinks else text.lstrip())
        self._thinks = True

    def _after(self, char: str) -> None:
        if not char.isspace():
            self._step = self._then
            self._then(char)

    def _say(self, text: str) -> None:
        for char in text:
            self._then(char)
