"""Calls that an answer has to be: JSON alone, held to a schema, whatever the model's own format is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_engine.server.tools.call_object import CallObject
from octavo_engine.server.tools.json_text import SPACE, Progress, ValueEnd
from octavo_engine.server.tools.message import Message

JsonSchema = dict[str, Any]


def one_call(parameters: JsonSchema | None) -> JsonSchema:
    """The schema of an answer that is the arguments of one function."""
    return {"type": "object"} if parameters is None else parameters


def some_calls(functions: Mapping[str, JsonSchema | None], most: int | None) -> JsonSchema:
    """The schema of an answer that is a list of calls, one at least and `most` at most, of `functions`, by name."""
    call = any_call(functions)
    schema = {"type": "array", "items": call, "minItems": 1, "$defs": call.pop("$defs")}
    return schema if most is None else schema | {"maxItems": most}


def any_call(functions: Mapping[str, JsonSchema | None], arguments: str = "arguments") -> JsonSchema:
    """The schema of a call of one of `functions`. `arguments`: what their member is called."""
    calls = [_call(name, arguments) for name in functions]
    schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
    places = {name: _moved(one_call(parameters), f"#/$defs/{name}") for name, parameters in functions.items()}
    return schema | {"$defs": places}


def _call(name: str, arguments: str) -> JsonSchema:
    """The name comes first, so that the arguments can go out as they come."""
    return {
        "type": "object",
        "properties": {"name": {"const": name}, arguments: {"$ref": f"#/$defs/{name}"}},
        "required": ["name", arguments],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema at another place: its references to itself lead there."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, place) for key, value in schema.items()}
    ref = moved.get("$ref")
    if isinstance(ref, str) and ref.startswith("#"):
        moved["$ref"] = place + ref[1:]
    return moved


class CallList:
    """Reads `[{"name": ..., "arguments": {...}}, ...]`."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._call: CallObject | None = None
        self._raw: list[str] = []  # since the last call: told as text where the answer is cut short before a name

    def push(self, char: str) -> None:
        """Take one character."""
        self._raw.append(char)
        if self._call is None and char == "{":
            self._call = CallObject(self._message)
        if self._call is None:
            return
        progress = self._call.push(char)
        if progress is Progress.DONE:
            self._raw = []
        if progress is not Progress.READING:
            self._call = None

    def finish(self) -> None:
        """The text has ended."""
        begun = self._call is not None and self._call.begun
        if not begun and "".join(self._raw).strip(SPACE + ",]"):
            self._message.say("".join(self._raw))


class CallOf:
    """Reads the arguments of one call, whose name is known from the start."""

    def __init__(self, message: Message, name: str) -> None:
        self._message = message
        self._name = name
        self._end = ValueEnd()
        self._begun = self._ended = False

    def push(self, char: str) -> None:
        """Take one character."""
        if self._ended or (not self._begun and char in SPACE):
            return
        if not self._begun:
            self._begun = True
            self._message.call(self._name)
        self._message.argue(char)
        self._ended = self._end.push(char)

    def finish(self) -> None:
        """The text has ended."""
