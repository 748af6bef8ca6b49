"""The Responses API through the official client: its basic examples, streamed and not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest

from scripted_server import SCRIPT
from scripted_talk import BOTH, CALLS, HERMES, TURNS, prompt_of, saying

TOOLS: list[Any] = [{"type": "function", "name": "get_weather", "description": "The weather.", "parameters": {}}]
UNIQUE = {"type": "array", "uniqueItems": True}
IDS = {"id", "item_id", "call_id", "created_at", "completed_at"}


def without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [without_ids(item) for item in value]
    if isinstance(value, dict):
        return {key: without_ids(item) for key, item in value.items() if key not in IDS}
    return value


def streamed(client: openai.OpenAI, **asked: Any) -> tuple[list[Any], Any]:
    """The events of a response, and the whole one that it ends with."""
    events = list(client.responses.create(stream=True, **asked))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0].response.status == "in_progress"
    return events, events[-1].response


def grown(events: list[Any]) -> dict[str, str]:
    """What each item's deltas come to, by its id; its last word must be the same."""
    texts: dict[str, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            texts[event.item_id] = texts.get(event.item_id, "") + event.delta
        elif event.type.endswith(("_text.done", "arguments.done")):
            last = event.arguments if event.type.endswith("arguments.done") else event.text
            assert texts[event.item_id] == last
    return texts


def test_a_text_in_and_a_text_out(smollm2_gguf: Path) -> None:
    with saying(smollm2_gguf, TURNS, SCRIPT) as (server, client):
        asked: Any = {"model": "scripted", "instructions": "Be brief.", "input": "Where?", "metadata": {"k": "v"}}
        answer = client.responses.create(**asked)
        assert prompt_of(server) == "system: Be brief.\nuser: Where?\nassistant:"
        assert (answer.output_text, answer.status, answer.metadata) == (SCRIPT, "completed", {"k": "v"})
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
        assert server.timeline(answer.id) is not None
        events, whole = streamed(client, **asked)
        assert without_ids(whole.model_dump()) | {"usage": None} == without_ids(answer.model_dump()) | {"usage": None}
        assert list(grown(events).values()) == [SCRIPT]
        assert [event.type for event in events if not event.type.endswith(".delta")] == [
            *("response.created", "response.in_progress", "response.output_item.added"),
            *("response.content_part.added", "response.output_text.done", "response.content_part.done"),
            *("response.output_item.done", "response.completed"),
        ]


def test_the_clients_own_stream_helper_understands_it(smollm2_gguf: Path) -> None:
    with saying(smollm2_gguf, HERMES, CALLS) as (_, client):
        with client.responses.stream(model="scripted", input="Weather?", tools=TOOLS) as stream:
            for _event in stream:
                pass
            final = stream.get_final_response()
        assert [item.type for item in final.output] == ["message", "function_call", "function_call"]


def test_an_answer_cut_short_is_incomplete(smollm2_gguf: Path) -> None:
    with saying(smollm2_gguf, TURNS, SCRIPT) as (_, client):
        asked: Any = {"model": "scripted", "input": [{"role": "user", "content": "Where?"}], "max_output_tokens": 2}
        answer = client.responses.create(**asked)
        assert answer.status == "incomplete"
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"
        events, whole = streamed(client, **asked)
        assert (events[-1].type, whole.output_text) == ("response.incomplete", answer.output_text)


def test_thoughts_words_and_calls_are_items_and_go_back(smollm2_gguf: Path) -> None:
    with saying(smollm2_gguf, BOTH, f"<think>\nHm.\n</think>\n{CALLS}") as (server, client):
        asked: Any = {"model": "scripted", "input": "Weather?", "tools": TOOLS, "tool_choice": "auto"}
        answer = client.responses.create(**asked)
        assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
        thought, message, *calls = (item.model_dump() for item in answer.output)
        assert thought["content"][0]["text"] == "Hm."
        assert message["content"][0]["text"] == "Let me look."
        assert [json.loads(call["arguments"]) for call in calls] == [{"city": "Paris 日本"}, {"city": "Nice"}]
        events, whole = streamed(client, **asked)
        assert without_ids(whole.model_dump()["output"]) == without_ids(answer.model_dump()["output"])
        assert len(grown(events)) == 4
        results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "21"} for call in calls]
        history = [{"role": "user", "content": "Weather?"}, *answer.output, *results]
        client.responses.create(**asked | {"input": history}, max_output_tokens=1)
        said = "assistant: Let me look.get_weather of Paris 日本get_weather of Nice\ntool: 21\ntool: 21\nassistant:"
        assert prompt_of(server).endswith(f"user: Weather?\n{said}")


class Place(pydantic.BaseModel):
    city: str
    visits: int


def test_an_answer_keeps_to_the_class_that_it_was_asked_for(smollm2_gguf: Path) -> None:
    with saying(smollm2_gguf, TURNS, '{"city": "Nice", "visits": 3}') as (server, client):
        asked: Any = {"model": "scripted", "input": "Where?"}
        answer = client.responses.parse(text_format=Place, **asked)
        assert answer.output_parsed == Place(city="Nice", visits=3)
        assert server.recorder.ended[-1].constraint is not None
        assert answer.text is not None
        told: Any = answer.text.to_dict()["format"]
        assert (told["type"], told["name"], told["strict"]) == ("json_schema", "Place", True)
        assert set(told["schema"]["properties"]) == {"city", "visits"}
        with client.responses.stream(text_format=Place, **asked) as stream:
            assert stream.until_done().get_final_response().output_parsed == Place(city="Nice", visits=3)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ({"format": {"type": "json_object"}}, True),
        ({"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "description": "d"}}, True),
        ({"format": {"type": "text"}, "verbosity": "medium"}, False),
        ({"format": None}, False),
        ({}, False),
    ],
)
def test_a_form_comes_back_as_it_was_asked_for(smollm2_gguf: Path, text: Any, held: bool) -> None:
    with saying(smollm2_gguf, TURNS, "{}") as (server, client):
        answer = client.responses.create(model="scripted", input="Where?", text=text)
        assert (server.recorder.ended[-1].constraint is not None) == held
        assert answer.text is not None
        assert answer.text.to_dict() == {"format": text.get("format") or {"type": "text"}}


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format"),
        ({"text": {"format": {"type": "json_object", "name": "n"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "n", "schema": UNIQUE}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": "n n", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_object"}}, "tools": TOOLS}, "text.format"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"style": "terse"}}, "text.style"),
        ({"tools": [TOOLS[0] | {"strict": True, "parameters": UNIQUE}]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10_000}, "max_output_tokens"),
        ({"input": "word " * 300}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": []}, "input"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
    ],
)
def test_what_is_not_supported_is_named(smollm2_gguf: Path, extra: dict[str, Any], param: str) -> None:
    with saying(smollm2_gguf, HERMES, "x") as (server, client):
        asked: Any = {"model": "scripted", "input": "Where?"} | extra
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**asked)
        assert caught.value.param == param
        assert server.engine.arrivals == 0


def test_a_call_can_be_required(smollm2_gguf: Path) -> None:
    text = '[{"name": "get_weather", "arguments": {"city": "Nice"}}]'
    with saying(smollm2_gguf, TURNS, text) as (server, client):
        asked: Any = {"model": "scripted", "input": "Weather?", "tools": TOOLS, "tool_choice": "required"}
        (call,) = client.responses.create(**asked).output
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Nice"})
        assert server.recorder.ended[-1].constraint is not None
