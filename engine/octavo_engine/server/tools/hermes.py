"""Calls as Hermes and Qwen models write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of
them, with or without text around."""

from __future__ import annotations

from octavo_engine.server.tools.call_object import CallObject
from octavo_engine.server.tools.json_text import Progress
from octavo_engine.server.tools.marked import MarkedText
from octavo_engine.server.tools.message import Message

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes:
    """What stands between the marks and is no call comes out as the text it is, the opening mark included."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._text = MarkedText((OPEN,), message.say)
        self._rest = MarkedText((OPEN, CLOSE), lambda _: None)  # after a call: models leave a brace too many there
        self._step = self._in_text
        self._call = CallObject(message)
        self._raw: list[str] = []

    def push(self, char: str) -> None:
        """Take one character."""
        self._step(char)

    def finish(self) -> None:
        """The text has ended."""
        if self._step == self._in_call and not self._call.begun:
            self._message.say("".join(self._raw))
        held = self._text.finish()
        if held.strip() or not self._message.num_calls:  # space after the last call is nobody's
            self._message.say(held)

    def _in_text(self, char: str) -> None:
        if self._text.push(char):
            self._begin(self._text.space)

    def _begin(self, space: str) -> None:
        self._call, self._raw = CallObject(self._message), [space, OPEN]
        self._step = self._in_call

    def _in_call(self, char: str) -> None:
        progress = self._call.push(char)
        if progress is Progress.DONE:
            self._step = self._after_call
        elif progress is Progress.FAILED:
            self._message.say("".join(self._raw))
            self._step = self._in_text
            self._in_text(char)
        else:
            self._raw.append(char)

    def _after_call(self, char: str) -> None:
        marker = self._rest.push(char)
        if marker == CLOSE:
            self._step = self._in_text
        elif marker == OPEN:
            self._begin("")
