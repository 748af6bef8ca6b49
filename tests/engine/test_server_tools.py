"""Tools and thoughts through the official client, streamed and not; the model follows a script."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from scripted_server import ScriptedModel
from scripted_talk import BOTH, CALLS, HERMES, THINKING, TURNS, held_to_form, joined, plain, prompt_of, saying

QUESTION: list[Any] = [{"role": "user", "content": "How warm is it in Paris?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}]
STRICT: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS, "strict": True}}
ODD: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "array", "uniqueItems": True}},
}
ODD_STRICT = ODD | {"function": ODD["function"] | {"strict": True}}


def test_calls_plain_and_streamed(smollm2_gguf: Path) -> None:
    with saying(smollm2_gguf, HERMES, CALLS) as (server, client):
        asked: Any = {"model": "scripted", "messages": QUESTION, "tools": TOOLS}
        answer = client.chat.completions.create(**asked)
        found = plain(answer)
        assert found == joined(client.chat.completions.create(**asked, stream=True))
        assert found["content"] == "Let me look."
        assert [json.loads(arguments) for _, arguments in found["calls"]] == [{"city": "Paris 日本"}, {"city": "Nice"}]
        assert found["end"] == "tool_calls"
        assert prompt_of(server).startswith("tools: get_weather\nuser: How warm")
        # The answer and the tools' results go back, and the template shows them.
        calls = answer.choices[0].message.model_dump(exclude_none=True)
        results = [
            {"role": "tool", "content": "21", "tool_call_id": call.id} for call in answer.choices[0].message.tool_calls
        ]
        client.chat.completions.create(**asked | {"messages": [*QUESTION, calls, *results]}, max_tokens=1)
        assert "Let me look.get_weather of Paris 日本get_weather of Nice\ntool: 21\ntool: 21\n" in prompt_of(server)


def test_logprobs_and_a_limit_go_with_calls(smollm2_gguf: Path) -> None:
    with saying(smollm2_gguf, HERMES, CALLS) as (_, client):
        asked: Any = {"model": "scripted", "messages": QUESTION, "tools": TOOLS, "logprobs": True}
        answer = client.chat.completions.create(**asked, max_tokens=40)
        assert answer.choices[0].finish_reason == "length"
        assert plain(answer)["calls"][0][0] == "get_weather"
        tokens = answer.choices[0].logprobs.content
        chunks = list(client.chat.completions.create(**asked, max_tokens=40, stream=True))
        assert joined(chunks) == plain(answer)
        parts = [chunk.choices[0].logprobs.content for chunk in chunks if chunk.choices[0].logprobs]
        streamed = [token for part in parts for token in part]
        assert [token.bytes for token in streamed] == [token.bytes for token in tokens]


def test_one_call_at_most_and_none_at_all(smollm2_gguf: Path) -> None:
    with saying(smollm2_gguf, HERMES, CALLS) as (server, client):
        asked: Any = {"model": "scripted", "messages": QUESTION, "tools": TOOLS}
        one = plain(client.chat.completions.create(**asked, parallel_tool_calls=False))
        assert len(one["calls"]) == 1
        none = plain(client.chat.completions.create(**asked, tool_choice="none"))
        assert (none["content"], none["calls"], none["end"]) == (CALLS, [], "stop")
        assert prompt_of(server).startswith("user: How warm")


@pytest.mark.parametrize(
    ("template", "extra", "param"),
    [
        (HERMES, {"tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice"),
        (HERMES, {"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
        (HERMES, {"tool_choice": "required", "extra_body": {"ignore_eos": True}}, "ignore_eos"),
        (HERMES, {"tools": [ODD_STRICT]}, "tools"),
        (HERMES, {"tools": [STRICT], "parallel_tool_calls": False, "extra_body": {"ignore_eos": True}}, "ignore_eos"),
        (HERMES, {"tools": [STRICT], "response_format": {"type": "json_object"}}, "response_format"),
        (BOTH, {"tools": [STRICT], "extra_body": {"chat_template_kwargs": {"forced": True}}}, "tools"),
        (HERMES, {"tools": [ODD], "tool_choice": "required"}, "tools"),
        (THINKING, {}, "tools"),
        ("{{ messages[0].content }}{# <tool_call> #}", {}, "tools"),
    ],
)
def test_what_cannot_be_kept_is_refused(smollm2_gguf: Path, template: str, extra: Any, param: str) -> None:
    with saying(smollm2_gguf, template, "x") as (server, client):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**{"model": "scripted", "messages": QUESTION, "tools": TOOLS} | extra)
        assert caught.value.param == param
        assert server.engine.arrivals == 0


@pytest.mark.parametrize("forced", [False, True])
def test_thoughts_plain_and_streamed(smollm2_gguf: Path, forced: bool) -> None:
    text = ("" if forced else "<think>\n") + "It is <b>late</b>.\n</think>\n\nGood night 👍🏽"
    with saying(smollm2_gguf, THINKING, text) as (_, client):
        kwargs = {"chat_template_kwargs": {"forced": forced}}
        asked: Any = {"model": "scripted", "messages": QUESTION, "extra_body": kwargs}
        found = plain(client.chat.completions.create(**asked))
        assert found == joined(client.chat.completions.create(**asked, stream=True))
        assert found["reasoning_content"] == "It is <b>late</b>."
        assert (found["content"], found["end"]) == ("Good night 👍🏽", "stop")
        asked["extra_body"] = kwargs | {"include_reasoning": False}
        quiet = plain(client.chat.completions.create(**asked))
        assert quiet == found | {"reasoning_content": ""}
        assert quiet == joined(client.chat.completions.create(**asked, stream=True))


NAMED = {"type": "function", "function": {"name": "get_weather"}}
LIST = '[{"name": "get_weather", "arguments": {"city": "Paris 日本"}}, {"name": "f", "arguments": {"city": "Nice"}}]'


@pytest.mark.parametrize(
    ("template", "choice", "text", "calls"),
    [
        (TURNS, "required", LIST, [["get_weather", '{"city": "Paris 日本"}'], ["f", '{"city": "Nice"}']]),
        (HERMES, NAMED, '{"city": "Paris"}', [["get_weather", '{"city": "Paris"}']]),
    ],
)
def test_a_call_that_has_to_be_is_held_to_its_schema(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch, *, template: str, choice: Any, text: str, calls: Any
) -> None:
    monkeypatch.setattr(ScriptedModel, "_sample", held_to_form(ScriptedModel._sample))
    with saying(smollm2_gguf, template, text) as (server, client):
        asked: Any = {"model": "scripted", "messages": QUESTION, "tools": [*TOOLS, STRICT], "tool_choice": choice}
        found = plain(client.chat.completions.create(**asked))
        assert (found["calls"], found["content"], found["end"]) == (calls, "", "tool_calls")
        assert found == joined(client.chat.completions.create(**asked, stream=True))
        assert prompt_of(server).startswith("tools: get_weatherf\n")


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("required", "It is warm."),
        ("required", "[]"),
        ("required", '[{"name": "fly", "arguments": {}}]'),
        ("required", '[{"name": "get_weather", "arguments": {"city": 5}}]'),
        (NAMED, '{"city": 5}'),
    ],
)
def test_what_is_no_such_call_cannot_be_said(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch, choice: Any, text: str
) -> None:
    monkeypatch.setattr(ScriptedModel, "_sample", held_to_form(ScriptedModel._sample))
    with saying(smollm2_gguf, TURNS, text) as (_, client), pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="scripted", messages=QUESTION, tools=TOOLS, tool_choice=choice)


@pytest.mark.parametrize(
    ("begun", "thought", "said"),
    [("<think>\nIt", "is late.", "Good night."), ("<think>Late.</think>Well,", "", "is late.</think>\nGood night.")],
)
def test_a_thought_that_the_client_began_is_gone_on_with(
    smollm2_gguf: Path, begun: str, thought: str, said: str
) -> None:
    with saying(smollm2_gguf, THINKING, " is late.</think>\nGood night.") as (_, client):
        messages = [*QUESTION, {"role": "assistant", "content": begun}]
        extra = {"continue_final_message": True}
        found = plain(client.chat.completions.create(model="scripted", messages=messages, extra_body=extra))
        assert (found["reasoning_content"], found["content"].strip()) == (thought, said)
