"""Calls as Llama 3 models write them: the whole answer is an object `{"name": ..., "parameters": {...}}`, or several
with semicolons between, perhaps after `<|python_tag|>`."""

from __future__ import annotations

from collections.abc import Collection

from octavo_engine.server.tools.call_object import CallObject
from octavo_engine.server.tools.json_text import SPACE, Progress
from octavo_engine.server.tools.message import Message

TAG = "<|python_tag|>"


class Llama3:
    """No mark tells such a call from an answer in JSON, so only an object with the name of a tool is one."""

    def __init__(self, message: Message, names: Collection[str]) -> None:
        self._message = message
        self._names = names
        self._step = self._before_call
        self._call = CallObject(message, names)
        self._raw: list[str] = []  # since the last call

    def push(self, char: str) -> None:
        """Take one character."""
        self._step(char)

    def finish(self) -> None:
        """The text has ended."""
        if self._step == self._in_text or (self._step == self._in_call and self._call.begun):
            return
        raw = "".join(self._raw)
        if not self._message.num_calls or raw.strip(SPACE + ";,"):
            self._message.say(raw)

    def _before_call(self, char: str) -> None:
        self._raw.append(char)
        between = SPACE + ";," if self._message.num_calls else SPACE
        raw = "".join(self._raw).lstrip(between).removeprefix(TAG).lstrip(between)
        if raw == "{":
            self._call = CallObject(self._message, self._names)
            self._call.push(char)
            self._step = self._in_call
        elif raw and not TAG.startswith(raw):
            self._give_up()

    def _in_call(self, char: str) -> None:
        self._raw.append(char)
        progress = self._call.push(char)
        if progress is Progress.DONE:
            self._raw = []
            self._step = self._before_call
        elif progress is Progress.FAILED:
            self._give_up()

    def _give_up(self) -> None:
        self._message.say("".join(self._raw))
        self._step = self._in_text

    def _in_text(self, char: str) -> None:
        self._message.say(char)
