"""Fields that ask for a form: what is taken, and what is refused by name before anything reaches the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo_engine.errors import RequestError
from octavo_engine.server.forms import check_calls, thought_before
from octavo_engine.structured import spec
from octavo_engine.tokenizer import load_tokenizer
from scripted_server import ScriptedServer, scripted_server
from small_vocabulary import VOCABULARY

pytestmark = pytest.mark.engine

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
TEXT = {"prompt": "hi", "max_tokens": 2}
FORM = spec.json_object("response_format")
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}
UNIQUE = {"type": "array", "uniqueItems": True}


def asked(schema: Any, **rest: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema} | rest}}


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[ScriptedServer]:
    with scripted_server(load_tokenizer(str(smollm2_gguf))) as server:
        yield server


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
        asked(OBJECT, strict=True, description="d"),
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        {"structured_outputs": {"json": OBJECT}},
        {"structured_outputs": {"json": '{"type": "object"}'}},
        {"structured_outputs": {"json_object": True}},
        {"structured_outputs": {"regex": "a|b"}},
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"structured_outputs": {"grammar": 'start: "a" | "b"'}},
        {"guided_json": OBJECT},
        {"guided_regex": "[0-9]+"},
        {"guided_choice": ["a", "b"]},
        {"guided_grammar": 'root ::= "a" | "b"'},
        {"guided_json": None, "structured_outputs": None, "response_format": None},
        {"guided_regex": "[0-9]+", "min_tokens": 1, "n": 3, "stop": ["x"], "logit_bias": {"5": 1}},
    ],
)
@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_forms_are_taken(server: ScriptedServer, path: str, body: dict[str, Any], fields: dict[str, Any]) -> None:
    answer = server.post(path, **body | fields)
    assert answer.status_code == 200, answer.text
    ended = server.recorder.ended[-1]
    form_asked = any(value not in (None, {"type": "text"}) for value in fields.values())
    assert (ended.constraint is not None) == form_asked


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (asked(UNIQUE), "response_format.json_schema.schema"),
        (asked([]), "response_format.json_schema.schema"),
        (asked(OBJECT, name="a b"), "response_format.json_schema.name"),
        (asked(OBJECT, nonsense=1), "response_format.json_schema.nonsense"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_object", "json_schema": {"name": "n"}}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json_object"}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"json": UNIQUE}}, "structured_outputs.json"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, "structured_outputs.choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": "(?=a)"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["", "a"]}, "guided_choice"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_grammar": "start: missing"}, "guided_grammar"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos"),
    ],
)
@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
def test_what_cannot_be_is_refused_by_name(
    server: ScriptedServer, path: str, body: dict[str, Any], fields: dict[str, Any], param: str
) -> None:
    before = server.engine.arrivals
    answer = server.post(path, **body | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith(param), answer.text
    assert server.engine.arrivals == before


def test_a_form_leaves_no_room_for_calls() -> None:
    check_calls(None, calls=True)
    check_calls(FORM, calls=False)
    with pytest.raises(RequestError, match=r"response_format: .*tool_choice: none"):
        check_calls(FORM, calls=True)


@pytest.mark.parametrize(("thinking", "expected"), [(None, None), (True, True), (False, False)])
def test_a_form_comes_after_the_thought_of_a_model_that_thinks(thinking: bool | None, expected: bool | None) -> None:
    thought = thought_before(FORM, VOCABULARY, thinking=thinking)
    assert (None if thought is None else thought.begun) is expected
    assert thought_before(None, VOCABULARY, thinking=thinking) is None


def test_a_thought_without_an_end_is_refused_and_one_without_a_beginning_is_none(server: ScriptedServer) -> None:
    marked_by_several_tokens = server.context.tokenizer
    assert thought_before(FORM, marked_by_several_tokens, thinking=False) is None
    with pytest.raises(RequestError, match=r"response_format: .*chat_template_kwargs"):
        thought_before(FORM, marked_by_several_tokens, thinking=True)
