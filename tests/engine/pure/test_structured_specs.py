"""What an answer shall be, as clients write it: sizes, spellings, and what is refused before any grammar is made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo_engine.errors import RequestError
from octavo_engine.structured import spec
from octavo_engine.structured.spec import Kind


def nested(levels: int) -> dict[str, Any]:
    """A schema of so many objects in each other."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range((levels - 1) // 2):
        schema = {"properties": {"a": schema}}
    return schema


def test_equal_forms_are_one_whichever_field_they_came_in() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    one, other = spec.json_schema(schema, "response_format"), spec.json_schema(json.dumps(schema), "guided_json")
    assert one == other
    assert hash(one) == hash(other)
    assert one.param != other.param


def test_the_order_of_properties_is_part_of_the_form() -> None:
    first = spec.json_schema({"properties": {"a": {}, "b": {}}}, "p")
    assert first != spec.json_schema({"properties": {"b": {}, "a": {}}}, "p")


def test_the_same_words_are_different_forms_in_different_kinds() -> None:
    assert spec.regex("start: /a/", "p") != spec.grammar("start: /a/", "p")
    assert spec.json_object("p").kind is Kind.JSON_OBJECT


def test_a_choice_named_twice_is_one() -> None:
    assert spec.choice(["yes", "no", "yes"], "p") == spec.choice(["yes", "no"], "p")


@pytest.mark.parametrize("schema", [[], 1, None, True, "[]", "7", "{", "", " ", "[" * 50_000])
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(RequestError) as caught:
        spec.json_schema(schema, "guided_json")
    assert caught.value.param == "guided_json"
    assert str(caught.value).startswith("guided_json: ")


def test_depth_is_bounded_and_told() -> None:
    spec.json_schema(nested(spec.MAX_DEPTH - 1), "p")
    with pytest.raises(RequestError, match=r"32 levels; put parts of it into \$defs"):
        spec.json_schema(nested(spec.MAX_DEPTH + 3), "p")


@pytest.mark.parametrize("make", [spec.regex, spec.grammar])
def test_size_is_bounded_and_told(make: Any) -> None:
    make("a" * spec.MAX_CHARACTERS, "p")
    with pytest.raises(RequestError, match="65536 are allowed"):
        make("a" * (spec.MAX_CHARACTERS + 1), "p")
    with pytest.raises(RequestError, match="it is empty"):
        make(" ", "p")


def test_a_long_schema_is_refused() -> None:
    with pytest.raises(RequestError, match="65536 are allowed"):
        spec.json_schema({"enum": [str(number) for number in range(20_000)]}, "p")


@pytest.mark.parametrize("choices", [[], [""], ["a", ""], [str(number) for number in range(1025)]])
def test_choices_are_some_and_not_empty(choices: list[str]) -> None:
    with pytest.raises(RequestError, match="p: "):
        spec.choice(choices, "p")


def test_what_would_loosen_a_schema_is_refused() -> None:
    with pytest.raises(RequestError, match="x-guidance"):
        spec.json_schema({"type": "object", "x-guidance": {"lenient": True}}, "p")
