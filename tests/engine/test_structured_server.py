"""Fields that ask for a form: what is taken, and what is refused by name before anything reaches the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from form_bombs import BOMBS, NOWHERE
from octavo_engine.errors import FormTooComplex, RequestError
from octavo_engine.request import FinishReason, Request
from octavo_engine.server.forms import check_calls, thought_before
from octavo_engine.structured import spec
from octavo_engine.tokenizer import load_tokenizer
from scripted_server import ScriptedServer, scripted_server, until
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


# -- limits ------------------------------------------------------------------------------------------------------------

# Whatever begins otherwise gets through, so the form is taken; what begins with small letters meets a limit.
HARD = {"guided_regex": "[^a-z].*|((([a-z]{1,30}){1,30}){1,30}){1,30}"}
SAID = "abcdefghijklmnopqrstuvwxyz" * 3


@pytest.fixture(scope="module")
def trying(smollm2_gguf: Path) -> Iterator[ScriptedServer]:
    """A server that tries forms first, as every one outside of tests."""
    with scripted_server(load_tokenizer(str(smollm2_gguf)), tried=True) as server:
        yield server


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_a_400_that_names_its_field_or_an_answer(trying: ScriptedServer, name: str) -> None:
    try:
        form = BOMBS[name]()
    except RequestError:  # for its size or depth, before any process sees it
        return
    field = {"json_schema": "guided_json", "regex": "guided_regex", "grammar": "guided_grammar"}[form.kind]
    sent = json.loads(form.text) if form.kind == "json_schema" else form.text
    answer = trying.post("/v1/completions", **TEXT | {field: sent})
    if answer.status_code != 200:
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == field
    assert trying.post("/v1/completions", **TEXT, guided_choice=["a", name]).status_code == 200


@pytest.mark.parametrize("form", NOWHERE.values(), ids=NOWHERE)
def test_a_form_that_no_answer_gets_along_reaches_no_step(trying: ScriptedServer, form: spec.Spec) -> None:
    before = trying.engine.arrivals
    answer = trying.post("/v1/chat/completions", **CHAT | {form.param: form.text})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("form_too_complex", form.param)
    assert error["message"].startswith(f"{form.param}: this form is too complex after ")
    assert trying.engine.arrivals == before


@pytest.fixture
def following(trying: ScriptedServer) -> Iterator[ScriptedServer]:
    """Its model says SAID, and its step asks the form at each token, as the sampler does."""

    def fault(request: Request) -> FormTooComplex | None:
        try:
            if request.constraint is not None:
                request.constraint.allowed(request.tokens, request.num_prompt)
        except FormTooComplex as error:
            return error
        return None

    letters = [trying.context.tokenizer.encode(letter, add_special_tokens=False)[0] for letter in SAID]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trying.model, "script", letters)
        patch.setattr(trying.model, "fault", fault)
        yield trying


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)])
@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_in_the_midst_of_an_answer_is_the_clients_to_mend(
    following: ScriptedServer, path: str, body: dict[str, Any], stream: bool
) -> None:
    answer = following.post(path, **body | HARD | {"max_tokens": 80, "stream": stream})
    assert answer.status_code == (200 if stream else 400), answer.text
    if stream:
        assert "[DONE]" not in answer.text
    last = answer.text.strip().removeprefix("data: ").rpartition("\n\ndata: ")[2]
    error = json.loads(last)["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error", "form_too_complex", "guided_regex",
    )  # fmt: skip
    assert "too complex after" in error["message"]
    assert "too many expressions" in error["message"]
    assert following.recorder.ended[-1].finish_reason is FinishReason.FORM_TOO_COMPLEX
    until(following.idle, "its blocks are free")


def test_the_others_of_its_step_get_what_they_would_have_had(following: ScriptedServer) -> None:
    alone = following.post("/v1/completions", prompt="hi", max_tokens=70).json()["choices"]
    before = following.engine.arrivals
    following.model.gate.clear()
    with ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(following.post, "/v1/completions", prompt="hi", max_tokens=70, **form) for form in (HARD, {})
        ]
        try:
            until(lambda: following.engine.arrivals == before + 2, "from the second step on they are in one")
        finally:
            following.model.gate.set()
        hard, free = (each.result() for each in asked)
    assert hard.json()["error"]["code"] == "form_too_complex"
    assert free.json()["choices"] == alone


@pytest.mark.parametrize("stream", [False, True])
def test_in_responses_the_field_is_called_as_it_is_there(following: ScriptedServer, stream: bool) -> None:
    pattern = f"^(?:{HARD['guided_regex']})$"
    shape = {"type": "json_schema", "name": "n", "schema": {"type": "string", "pattern": pattern}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            following.model,
            "script",
            following.context.tokenizer.encode('"', add_special_tokens=False) + following.model.script,
        )
        answer = following.post(
            "/v1/responses", input="hi", max_output_tokens=80, stream=stream, text={"format": shape}
        )
    assert answer.status_code == (200 if stream else 400), answer.text
    assert '"param":"text.format.schema"' in answer.text.replace('": "', '":"')
    assert '"code":"form_too_complex"' in answer.text.replace('": "', '":"')
    assert "response.completed" not in answer.text
