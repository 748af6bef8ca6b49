"""Answers that have to be calls: what they are held to, and how they are read."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine.server.tools.enforced import CallList, CallOf, one_call, some_calls
from octavo_engine.server.tools.message import Message
from octavo_engine.server.tools.reader import MessageReader

NODE = {"type": "object", "properties": {"next": {"$ref": "#"}, "at": {"$ref": "#/$defs/place"}}}
PLACE = {"type": "string", "enum": ["Paris", "Nice"]}
FUNCTIONS: dict[str, Any] = {"walk": NODE | {"$defs": {"place": PLACE}, "additionalProperties": False}, "rest": None}


def valid(calls: list[dict[str, Any]], most: int | None = None) -> bool:
    return jsonschema.Draft202012Validator(some_calls(FUNCTIONS, most)).is_valid(calls)


def test_calls_are_held_to_the_functions_and_their_schemas() -> None:
    walk = {"name": "walk", "arguments": {"next": {"at": "Nice"}, "at": "Paris"}}
    assert valid([walk])
    assert valid([walk, {"name": "rest", "arguments": {"long": True}}])
    assert not valid([])
    assert not valid([walk, walk], most=1)
    assert not valid([{"name": "fly", "arguments": {}}])
    assert not valid([{"name": "rest"}])
    assert not valid([{"name": "walk", "arguments": {"next": {"at": "Rome"}}}])
    assert not valid([{"name": "walk", "arguments": {"next": {"next": 1}}}])
    assert one_call(None) == {"type": "object"}
    assert one_call(PLACE) is PLACE


def read(pieces: list[str], named: str | None) -> tuple[str, dict[int, list[str]]]:
    """What is said, and each call's name and arguments."""
    message = Message(str)
    reader = MessageReader(message, CallList(message) if named is None else CallOf(message, named), thinking=None)
    content, calls = "", {}
    for number, piece in enumerate(pieces):
        said = reader.push(piece, last=number == len(pieces) - 1)
        content += said.content
        for part in said.calls:
            if part.name is not None:
                calls[part.index] = [part.name, ""]
            calls[part.index][1] += part.arguments
    return content, calls


VALUES = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4) | st.lists(st.booleans()), max_size=3)
LISTS = st.lists(st.tuples(st.sampled_from(["walk", "rest"]), VALUES), min_size=1, max_size=3)


@given(LISTS, st.sampled_from([None, 1]), st.data())
def test_a_list_of_calls_is_read_however_it_comes(calls: list[tuple[str, Any]], indent, data) -> None:
    text = json.dumps([{"name": name, "arguments": given} for name, given in calls], indent=indent)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=5).map(sorted))
    pieces = [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])]
    content, found = read(pieces, None)
    assert (content, [(name, json.loads(given)) for name, given in found.values()]) == ("", calls)


@given(VALUES)
def test_arguments_of_a_named_function(given_: Any) -> None:
    text = json.dumps(given_)
    assert read([f" {text}\n"], "walk") == read(list(text), "walk") == ("", {0: ["walk", text]})


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('[{"na', '[{"na', {}),
        ('[{"name": "walk", "arguments": {"a', "", {0: ["walk", '{"a']}),
        ('[{"name": "walk", "arguments": {}}, ', "", {0: ["walk", "{}"]}),
    ],
)
def test_an_answer_cut_short(text: str, content: str, calls: dict[int, list[str]]) -> None:
    assert read([text], None) == read(list(text), None) == (content, calls)
