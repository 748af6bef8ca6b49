"""What the server answers has the form that its OpenAPI document tells: plain and streamed, with all there may be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from octavo_engine.server.answer_schemas import ANSWERS, SCHEMAS
from octavo_engine.server.openapi import GETS, POSTS, document
from scripted_server import ScriptedServer
from scripted_talk import BOTH, CALLS, saying

pytestmark = pytest.mark.engine

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
QUESTION = {"role": "user", "content": "How warm is it in Paris?"}
FUNCTION = {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path) -> Iterator[ScriptedServer]:
    with saying(smollm2_gguf, BOTH, f"<think>\nHm.\n</think>\n{CALLS}") as (server, _):
        yield server


def check(name: str, value: Any) -> None:
    """Raises where a value is not of the form that the document has under this name."""
    told = document() | {"$ref": f"#/components/schemas/{name}"}
    jsonschema.Draft202012Validator(told).validate(value)


def events(reply: httpx.Response) -> list[Any]:
    """The data of a stream's events, without the mark of its end."""
    assert reply.headers["content-type"].startswith("text/event-stream"), reply.text
    data = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(item) for item in data if item != "[DONE]"]


ASKED: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": [QUESTION]}),
    (CHAT, {"messages": [QUESTION], "tools": TOOLS, "logprobs": True, "top_logprobs": 2, "n": 2}),
    (CHAT, {"messages": [QUESTION], "max_tokens": 2}),
    (CHAT, {"messages": [QUESTION], "stop": "Paris"}),
    (COMPLETIONS, {"prompt": "Two plus"}),
    (COMPLETIONS, {"prompt": ["Two", "plus"], "n": 2, "logprobs": 2, "max_tokens": 60}),
    (COMPLETIONS, {"prompt": [345], "echo": True, "stop_token_ids": [28]}),
    (RESPONSES, {"input": "How warm is it?"}),
    (RESPONSES, {"input": "How warm is it?", "tools": [{"type": "function", **FUNCTION}], "metadata": {"k": "v"}}),
    (RESPONSES, {"input": [QUESTION], "max_output_tokens": 2}),
]


@pytest.mark.parametrize(("path", "body"), ASKED)
def test_an_answer_and_its_stream_have_the_form_that_is_told(
    server: ScriptedServer, path: str, body: dict[str, Any]
) -> None:
    answer = ANSWERS[path]
    assert answer.event is not None
    plain = server.post(path, **body)
    assert plain.status_code == 200, plain.text
    check(answer.plain, plain.json())
    usage = {} if path == RESPONSES else {"stream_options": {"include_usage": True}}
    chunks = events(server.post(path, stream=True, **body, **usage))
    assert len(chunks) > 1
    for chunk in chunks:
        check(answer.event, chunk)


def test_calls_and_thoughts_were_among_them(server: ScriptedServer) -> None:
    """Otherwise half of these forms would be held against nothing."""
    message = server.post(CHAT, messages=[QUESTION], tools=TOOLS).json()["choices"][0]["message"]
    assert message["reasoning_content"]
    assert len(message["tool_calls"]) == 2
    items = server.post(RESPONSES, input="How warm is it?", tools=[{"type": "function", **FUNCTION}]).json()["output"]
    assert {item["type"] for item in items} == {"reasoning", "message", "function_call"}


def test_the_other_routes_and_refusals(server: ScriptedServer) -> None:
    with server.client as client:
        check("Models", client.get("/v1/models").json())
        check("Model", client.get("/v1/models/scripted").json())
        check("Health", client.get("/health").json())
        check("Error", client.get("/v1/models/other").json())
    check("Tokens", server.post("/tokenize", prompt="Two plus").json())
    check("Prompt", server.post("/detokenize", tokens=[1, 2]).json())
    check("Error", server.post(CHAT, messages=[]).json())
    check("Error", server.post(CHAT, messages=[QUESTION], temperature=9).json())


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_form_misses_what_it_must_have(name: str) -> None:
    validator = jsonschema.Draft202012Validator(SCHEMAS[name])
    assert not validator.is_valid({})


def test_every_route_has_one() -> None:
    assert set(ANSWERS) >= {*POSTS, *GETS}
    assert {path for path, (_, streams) in POSTS.items() if streams} == {
        path for path, answer in ANSWERS.items() if answer.event
    }


def test_a_servers_document_names_its_model() -> None:
    schemas = document("scripted")["components"]["schemas"]
    assert schemas["ChatBody"]["properties"]["model"]["enum"] == ["scripted"]
    assert schemas["TokenizeBody"]["properties"]["model"]["enum"] == ["scripted", None]
    (parameter,) = document("scripted")["paths"]["/v1/models/{name}"]["get"]["parameters"]
    assert parameter["schema"] == {"enum": ["scripted"]}


ENDS = "a\x0bb\x0cc\x85d\u2028e\u2029f\rg\nh"  # what Python takes for the end of a line, and the vocabulary has


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, {"messages": [QUESTION]}), (COMPLETIONS, {"prompt": "a", "max_tokens": 99}), (RESPONSES, {"input": "a"})],
    ids=["chat", "completions", "responses"],
)
def test_whoever_reads_by_lines_reads_whole_events(smollm2_gguf: Path, path: str, body: dict[str, Any]) -> None:
    """As many clients do with httpx: their lines end at characters that are none to events."""
    with (
        saying(smollm2_gguf, BOTH, ENDS) as (server, _),
        server.client as client,
        client.stream("POST", path, json={"model": "scripted", "stream": True} | body) as reply,
    ):
        data = [line.removeprefix("data: ") for line in reply.iter_lines() if line and not line.startswith("event: ")]
    told = [json.loads(item) for item in data if item != "[DONE]"]
    assert "".join(_said(event) for event in told) == ENDS


def _said(event: Any) -> str:
    """The text that an event brings."""
    if event.get("type") == "response.output_text.delta":
        return str(event["delta"])
    choice: Any = next(iter(event.get("choices", ())), {})
    return choice.get("text") or choice.get("delta", {}).get("content") or ""
