"""What an answer shall be, as a client wrote it: checked for size, and in one spelling, so that equals are found again.

Knows no grammar engine: whether such a form can be kept to is for `grammar` to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from octavo_engine.errors import RequestError
from octavo_engine.structured.opening import Openings

# A form is read in milliseconds up to here. The longest schemas in use, whole configuration files', have about as much.
MAX_CHARACTERS = 64 * 1024
MAX_DEPTH = 32  # of objects and lists in each other; a generated schema of many classes, which refers to each, has 10
MAX_CHOICES = 1024


class Kind(StrEnum):
    """The ways to say it."""

    JSON_OBJECT = "json_object"  # any JSON object
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"
    PARTS = "parts"  # JSON of schemas among fixed texts


@dataclass(frozen=True, slots=True)
class Spec:
    """A form. Two are equal when they ask for the same in the same words, whichever field of the body they were in."""

    kind: Kind
    text: str  # the schema, the choices or the parts as JSON, the expression, the grammar; empty for any object
    param: str = field(compare=False)  # the field, for complaints
    openings: Openings | None = None  # the answer is free, and each form in it begins so; None: it is the form


def json_object(param: str) -> Spec:
    """Any JSON object."""
    return Spec(Kind.JSON_OBJECT, "", param)


def json_schema(schema: Any, param: str) -> Spec:
    """JSON that a schema, itself an object or one written as text, describes; raises RequestError."""
    if isinstance(schema, str):
        schema = _parsed(_of_size(schema, param), param)
    if not isinstance(schema, dict):
        raise RequestError(f"{param}: a JSON schema is an object", param=param)
    if "x-guidance" in schema:  # it would loosen what the schema says
        raise RequestError(f"{param}: x-guidance is not supported; leave it out", param=param)
    if _depth_exceeds(schema, MAX_DEPTH):
        message = f"{param}: the schema is nested deeper than {MAX_DEPTH} levels; put parts of it into $defs"
        raise RequestError(message, param=param)
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))  # in the order given: answers follow it
    return Spec(Kind.JSON_SCHEMA, _of_size(text, param), param)


def regex(expression: str, param: str) -> Spec:
    """Text that the whole expression matches; raises RequestError."""
    return Spec(Kind.REGEX, _of_size(expression, param), param)


def choice(choices: Sequence[str], param: str) -> Spec:
    """One of the texts; raises RequestError."""
    if not 0 < len(choices) <= MAX_CHOICES:
        raise RequestError(f"{param}: give 1 to {MAX_CHOICES} choices, not {len(choices)}", param=param)
    if not all(choices):
        raise RequestError(f"{param}: a choice is empty, and would be no answer; leave it out", param=param)
    text = json.dumps(list(dict.fromkeys(choices)), ensure_ascii=False)
    return Spec(Kind.CHOICE, _of_size(text, param), param)


def grammar(rules: str, param: str) -> Spec:
    """Text of a context-free grammar; raises RequestError."""
    return Spec(Kind.GRAMMAR, _of_size(rules, param), param)


def parts(rules: str, schemas: Mapping[str, Any], openings: Openings, param: str) -> Spec:
    """Whatever the answer says, what comes after an opening: text of `rules`, Lark's, which name the `schemas`; raises
    RequestError."""
    for schema in schemas.values():
        json_schema(schema, param)
    text = json.dumps([rules, schemas], ensure_ascii=False, separators=(",", ":"))
    return Spec(Kind.PARTS, _of_size(text, param), param, openings)


def _of_size(text: str, param: str) -> str:
    if not text.strip():
        raise RequestError(f"{param}: it is empty; leave it out for an answer of any form", param=param)
    if len(text) > MAX_CHARACTERS:
        message = f"{param}: it has {len(text)} characters, but {MAX_CHARACTERS} are allowed; shorten it"
        raise RequestError(message, param=param)
    return text


def _parsed(text: str, param: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RequestError(f"{param}: the schema is text, but not JSON", param=param) from None


def _depth_exceeds(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    if levels == 0:
        return True
    inside = value.values() if isinstance(value, dict) else value
    return any(_depth_exceeds(item, levels - 1) for item in inside)
