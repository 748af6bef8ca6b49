"""Every number that a body may have, at its bounds and beyond: found in the schemas, so that none is forgotten."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from octavo_engine.errors import RequestError
from octavo_engine.server.body import parse_object
from octavo_engine.server.fields import parse_body
from octavo_engine.server.openapi import POSTS
from octavo_engine.server.replies import Refusal, refusal_of

SMALLEST: dict[str, dict[str, Any]] = {
    "messages": {"messages": [{"role": "user", "content": "hi"}]},
    "prompt": {"prompt": "hi"},
    "input": {"input": "hi"},
    "tokens": {"tokens": [1]},
}
NO_NUMBERS = ['"1"', '"NaN"', '""', "true", "false", "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000]
LONGEST_REPLY = 2048
KINDS = ("integer", "number")


@dataclass(frozen=True)
class Number:
    """One of a route's fields, as `%s` in JSON around the number."""

    path: str
    field: str
    around: str
    schema: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.path} {self.field}"

    @property
    def is_whole(self) -> bool:
        return bool(self.schema["type"] == "integer")

    def sent(self, number: str) -> bytes:
        """A body with it, of the fields that have to be there and no others that it could disagree with."""
        body: dict[str, Any] = {"model": "m"}
        needed = [name for name in SMALLEST if name in POSTS[self.path][0].model_fields]
        if self.field not in SMALLEST and needed:
            body |= SMALLEST[needed[0]]
        rest = ", ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in body.items())
        return f"{{{rest}, {json.dumps(self.field)}: {self.around.replace('%s', number)}}}".encode()

    def inside(self) -> Iterator[str]:
        """Its bounds, as far as they belong to it."""
        for bound in ("minimum", "maximum"):
            if bound in self.schema:
                yield json.dumps(self.schema[bound])

    def outside(self) -> Iterator[str]:
        """The nearest numbers beyond its bounds."""
        for bound, way in (("minimum", -1), ("maximum", 1)):
            if bound in self.schema:
                yield self._next(self.schema[bound], way)
        for bound in ("exclusiveMinimum", "exclusiveMaximum"):
            if bound in self.schema:
                yield json.dumps(self.schema[bound])

    def _next(self, number: float, way: int) -> str:
        return str(int(number) + way) if self.is_whole else repr(math.nextafter(number, way * math.inf))


def numbers() -> Iterator[Number]:
    for path, (body, _) in POSTS.items():
        for name, schema in body.model_json_schema()["properties"].items():
            for arm in schema.get("anyOf", [schema]):
                if arm.get("type") in KINDS:
                    yield Number(path, name, "%s", arm)
                elif arm.get("items", {}).get("type") in KINDS:
                    yield Number(path, name, "[%s]", arm["items"])
                elif isinstance(values := arm.get("additionalProperties"), dict) and values.get("type") in KINDS:
                    yield Number(path, name, '{"5": %s}', values)


NUMBERS = list(numbers())


def refusal(number: Number, sent: str) -> Refusal | None:
    """What a body with it is refused with, if it is."""
    try:
        parse_body(POSTS[number.path][0], parse_object(number.sent(sent)))
    except Refusal as refused:
        return refused
    except RequestError as error:
        return refusal_of(error)
    return None


def test_there_are_some() -> None:
    assert {"temperature", "n", "seed", "logit_bias", "stop_token_ids", "max_output_tokens", "tokens"} <= {
        number.field for number in NUMBERS
    }
    assert len(NUMBERS) > 40


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_what_is_no_number_is_refused_in_few_words(number: Number) -> None:
    for sent in [*NO_NUMBERS, "[1]", "{}", str(10**30), str(-(10**30)), *(["1.5", "1.0"] if number.is_whole else [])]:
        refused = refusal(number, sent)
        assert refused is not None, sent
        assert refused.status == 400
        assert len(json.dumps(refused.body)) < LONGEST_REPLY
        assert refused.param is None or refused.param.startswith(number.field)


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_bounds_belong_to_it_and_what_is_next_does_not(number: Number) -> None:
    assert set(number.schema) & {"minimum", "exclusiveMinimum"}, "a number without a bound"
    assert set(number.schema) & {"maximum", "exclusiveMaximum"}, "a number without a bound"
    for sent in number.inside():
        refused = refusal(number, sent)
        assert refused is None or not refused.message.startswith(f"{number.field}: "), f"{sent}: {refused}"
    for sent in number.outside():
        refused = refusal(number, sent)
        assert refused is not None, sent
        assert (refused.param or "").startswith(number.field), sent


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_a_negative_zero_is_zero_or_no_whole_number(number: Number) -> None:
    zero, negative = refusal(number, "0.0"), refusal(number, "-0.0")
    assert (zero is None) == (negative is None)
    assert not number.is_whole or negative is not None


MANY = 150_000
LONG_LISTS = {
    ("/v1/completions", "prompt"): '["a"], ',
    ("/v1/completions", "stop"): "1, ",
    ("/v1/completions", "stop_token_ids"): '"a", ',
    ("/v1/chat/completions", "messages"): "7, ",
    ("/v1/chat/completions", "tools"): "{}, ",
    ("/v1/embeddings", "input"): '["a"], ',
    ("/v1/responses", "input"): "7, ",
    ("/detokenize", "tokens"): '"a", ',
}
"""A wrong item of each list, which is to be refused without looking at all of them."""


@pytest.mark.parametrize("path_and_field", LONG_LISTS, ids=" ".join)
def test_a_long_list_of_wrong_items_is_refused_in_few_words(path_and_field: tuple[str, str]) -> None:
    path, field = path_and_field
    item = LONG_LISTS[path_and_field]
    needed = "messages" if "chat" in path else "prompt" if "completions" in path else field
    body: dict[str, Any] = {"model": "m"} | ({} if needed == field else SMALLEST[needed])
    if path == "/detokenize":
        del body["model"]
    rest = json.dumps(body)[1:-1]
    sent = f'{{{rest + ", " if rest else ""}"{field}": [{item * MANY}{item[:-2]}]}}'.encode()
    with pytest.raises((Refusal, RequestError)) as caught:
        parse_body(POSTS[path][0], parse_object(sent))
    refused = caught.value if isinstance(caught.value, Refusal) else refusal_of(caught.value)
    assert refused.status == 400
    assert (refused.param or "").startswith(field)
    assert len(json.dumps(refused.body)) < LONGEST_REPLY
