"""A call that a model writes as an object: `{"name": "f", "arguments": {...}}`."""

from __future__ import annotations

from collections.abc import Collection

from octavo_engine.server.tools.json_text import ObjectReader, Progress, string_of
from octavo_engine.server.tools.message import Message

_ARGUMENTS = ("arguments", "parameters")


class CallObject:
    """Reads one such object. The arguments go out as they are written, as soon as the name is known.

    `names` are those a call may have; None: any. An object without a name fails; once the call is begun, nothing does.
    """

    def __init__(self, message: Message, names: Collection[str] | None = None) -> None:
        self._message = message
        self._names = names
        self._object = ObjectReader(self._on_value, self._on_end)
        self._name: str | None = None
        self._spelled_name: list[str] = []
        self._key: str | None = None  # under which the arguments come; "" once they have come
        self._streams = False  # they are an object, and go out as they come
        self._held: list[str] = []
        self._bad = False
        self.begun = False

    def push(self, char: str) -> Progress:
        """Take one character."""
        progress = self._object.push(char)
        if self.begun:
            return Progress.READING if progress is Progress.READING else Progress.DONE
        if self._bad or (progress is Progress.DONE and self._name is None):
            return Progress.FAILED
        if progress is Progress.DONE:
            self._begin()
            self._message.argue("{}")
        return progress

    def _on_value(self, key: str, char: str) -> None:
        if key == "name" and self._name is None:
            self._spelled_name.append(char)
        elif key in _ARGUMENTS and self._key in (None, key):
            if self._key is None:
                self._key, self._streams = key, char == "{"
            self._held.append(char)
            self._release()

    def _on_end(self, key: str) -> None:
        if key == "name" and self._name is None:
            self._name = string_of("".join(self._spelled_name))
            self._bad = not self._name or (self._names is not None and self._name not in self._names)
        elif key == self._key:
            self._key = ""
            if not self._streams:
                self._held, self._streams = [_object_in("".join(self._held))], True
        self._release()

    def _release(self) -> None:
        held = "".join(self._held) if self._streams and self._name and not self._bad else ""
        if not held:
            return
        if not self.begun:
            self._begin()
        self._message.argue(held)
        self._held = []

    def _begin(self) -> None:
        assert self._name is not None
        self.begun = True
        self._message.call(self._name)


def _object_in(value: str) -> str:
    """Some models write the arguments as a string with JSON in it, and some write null for none."""
    text = string_of(value)
    if text is not None:
        return text
    return "{}" if value == "null" else value
