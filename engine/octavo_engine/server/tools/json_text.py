"""JSON as it comes, character by character: where a value ends, and whose member's value a character belongs to.

Values are not checked further: what a model writes for arguments is the client's to parse, as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum

SPACE = " \t\r\n"


class Progress(Enum):
    """How far a reader has come with the character it was given."""

    READING = "reading"
    DONE = "done"  # that character was the last
    FAILED = "failed"  # that character does not belong here


class ValueEnd:
    """Finds the last character of a string, an object or an array."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = self._escaped = False

    def push(self, char: str) -> bool:
        """True when the value ends with `char`."""
        if self._quoted:
            if self._escaped or char == "\\":
                self._escaped = not self._escaped
            elif char == '"':
                self._quoted = False
                return self._depth == 0
            return False
        if char == '"':
            self._quoted = True
        elif char in "[{":
            self._depth += 1
        elif char in "]}":
            self._depth -= 1
            return self._depth == 0
        return False


class ObjectReader:
    """Takes an object apart. `on_value` gets a member's key and a character of its value, `on_end` its key."""

    def __init__(self, on_value: Callable[[str, str], None], on_end: Callable[[str], None]) -> None:
        self._on_value, self._on_end = on_value, on_end
        self._step: Callable[[str], Progress] = self._before_object
        self._end = ValueEnd()
        self._key = ""
        self._scalar = False

    def push(self, char: str) -> Progress:
        """Take one character."""
        return self._step(char)

    def _before_object(self, char: str) -> Progress:
        if char == "{":
            self._step = self._before_key
        elif char not in SPACE:
            return Progress.FAILED
        return Progress.READING

    def _before_key(self, char: str) -> Progress:
        if char == "}":
            return Progress.DONE
        if char == '"':
            self._key, self._end = "", ValueEnd()
            self._step = self._in_key
            return self._in_key(char)
        return Progress.READING if char in SPACE + "," else Progress.FAILED

    def _in_key(self, char: str) -> Progress:
        self._key += char
        if self._end.push(char):
            key = string_of(self._key)
            if key is None:
                return Progress.FAILED
            self._key, self._step = key, self._before_colon
        return Progress.READING

    def _before_colon(self, char: str) -> Progress:
        if char == ":":
            self._step = self._before_value
        elif char not in SPACE:
            return Progress.FAILED
        return Progress.READING

    def _before_value(self, char: str) -> Progress:
        if char in SPACE:
            return Progress.READING
        if char in ",:]}":
            return Progress.FAILED
        self._end, self._scalar = ValueEnd(), char not in '"[{'
        self._step = self._in_value
        return self._in_value(char)

    def _in_value(self, char: str) -> Progress:
        if self._scalar and char in SPACE + ",}":  # only what follows a number or a word tells that it has ended
            self._value_ended()
            return self._before_key(char)
        self._on_value(self._key, char)
        if not self._scalar and self._end.push(char):
            self._value_ended()
        return Progress.READING

    def _value_ended(self) -> None:
        self._step = self._before_key
        self._on_end(self._key)


def string_of(text: str) -> str | None:
    """The string that JSON text stands for; None if it stands for none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None
