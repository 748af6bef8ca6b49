"""Calls as Mistral models write them: `[TOOL_CALLS]` and an array of `{"name": ..., "arguments": {...}}`, or, as newer
ones do, `[TOOL_CALLS]name[ARGS]{...}` for each."""

from __future__ import annotations

import re

from octavo_engine.server.tools.call_object import CallObject
from octavo_engine.server.tools.json_text import SPACE, Progress, ValueEnd
from octavo_engine.server.tools.marked import MarkedText
from octavo_engine.server.tools.message import Message

MARK, CALL_ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_HEAD = re.compile(
    rf"\s*([A-Za-z0-9_.-]{{1,64}})(?:{re.escape(CALL_ID)}[A-Za-z0-9_-]{{1,64}})?(?:{re.escape(ARGUMENTS)})?\s*"
)
_LONGEST_HEAD = 256


class Mistral:
    """What follows the mark and is no call comes out as the text it is, the mark included."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._text = MarkedText((MARK,), message.say)
        self._step = self._in_text
        self._call = CallObject(message)
        self._end = ValueEnd()
        self._raw: list[str] = []

    def push(self, char: str) -> None:
        """Take one character."""
        self._step(char)

    def finish(self) -> None:
        """The text has ended."""
        if self._step in (self._in_head, self._in_array) or (self._step == self._in_object and not self._call.begun):
            self._say_raw()
        held = self._text.finish()
        if held.strip() or not self._message.num_calls:
            self._message.say(held)

    def _in_text(self, char: str) -> None:
        if self._text.push(char):
            self._raw = [self._text.space, MARK]
            self._step = self._in_head

    def _in_head(self, char: str) -> None:
        """After the mark: an array begins, or a name."""
        head = "".join(self._raw[2:])
        if char == "[" and not head.strip():
            self._raw.append(char)
            self._step = self._in_array
        elif char == "{":
            found = _HEAD.fullmatch(head)
            if found is None:
                self._give_up(char)
                return
            self._message.call(found[1])
            self._end = ValueEnd()
            self._step = self._in_arguments
            self._in_arguments(char)
        elif len(head) == _LONGEST_HEAD:
            self._give_up(char)
        else:
            self._raw.append(char)

    def _in_arguments(self, char: str) -> None:
        self._message.argue(char)
        if self._end.push(char):
            self._step = self._in_text

    def _in_array(self, char: str) -> None:
        """Between the objects of an array."""
        if char == "]":
            if MARK in self._raw:  # an array of nothing
                self._raw.append(char)
                self._say_raw()
            self._step = self._in_text
        elif char == "{":
            self._call, self._step = CallObject(self._message), self._in_object
            self._in_object(char)
        elif char in SPACE + ",":
            self._raw.append(char)
        else:
            self._give_up(char)

    def _in_object(self, char: str) -> None:
        progress = self._call.push(char)
        if progress is Progress.DONE:
            self._raw, self._step = [], self._in_array
        elif progress is Progress.FAILED:
            self._give_up(char)
        else:
            self._raw.append(char)

    def _say_raw(self) -> None:
        raw = "".join(self._raw)
        if raw.strip(SPACE + ","):  # else it stood between two calls
            self._message.say(raw)

    def _give_up(self, char: str) -> None:
        self._say_raw()
        self._step = self._in_text
        self._in_text(char)
