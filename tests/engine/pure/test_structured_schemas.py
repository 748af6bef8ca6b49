"""Schemas that people use and schemas made at random, answered at random: an answer that ends by itself is valid."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from octavo_engine.errors import RequestError
from octavo_engine.structured import Forms, Grammar, spec
from public_schemas import public_schemas
from random_schemas import SchemaMaker
from small_vocabulary import END, VOCABULARY, answer_to

FORMS = Forms(VOCABULARY, [END])
WANTED = 200
TRIES = 4


def answers(grammar: Grammar, seed: int) -> Iterator[Any]:
    """What random answers that came to an end say."""
    for attempt in range(TRIES):
        tokens, ended = answer_to(grammar, TRIES * seed + attempt, limit=400)
        if ended:
            yield json.loads(VOCABULARY.text(tokens))


def without(schema: Any, keyword: str) -> Any:
    """A schema that does not ask for one thing, wherever it did."""
    if isinstance(schema, list):
        return [without(item, keyword) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: value for name, value in schema.items() if name != keyword or not isinstance(value, bool)}
    return {name: without(value, keyword) for name, value in kept.items()}


def enforceable() -> Iterator[tuple[str, Any, Grammar]]:
    """Public schemas of which nothing is refused, once they do not ask for unique items, as a third does."""
    for address, asked in public_schemas():
        schema = without(asked, "uniqueItems")
        with contextlib.suppress(RequestError):  # that it names what it refuses is tested elsewhere
            yield address, schema, FORMS.compile(spec.json_schema(schema, address))


def test_answers_to_two_hundred_public_schemas_are_valid() -> None:
    answered, wrong = 0, []
    for number, (address, schema, grammar) in enumerate(enforceable()):
        answer = next(answers(grammar, number), None)
        if answer is None:
            continue
        answered += 1
        judge = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        wrong += [(address, error.message) for error in judge(schema).iter_errors(answer)][:1]
        if answered == WANTED:
            break
    assert wrong == []
    assert answered == WANTED


@pytest.mark.parametrize("seed", range(100))
def test_answers_to_a_random_schema_are_valid(seed: int) -> None:
    schema = SchemaMaker(seed).make()
    jsonschema.Draft202012Validator.check_schema(schema)
    found = list(answers(FORMS.compile(spec.json_schema(schema, "p")), seed))
    assert found, "no answer came to its end: nothing was tested"
    for answer in found:
        jsonschema.validate(answer, schema, jsonschema.Draft202012Validator)
