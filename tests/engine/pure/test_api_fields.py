"""Every field that OpenAI documents is known, and either works, is ignored for a reason, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from api_fields.table import IGNORED, REFUSED, TABLES, YES, rows, with_tables
from octavo_engine.errors import RequestError
from octavo_engine.output import Delta
from octavo_engine.request import FinishReason, Sampled, TokenLogprob
from octavo_engine.server.answers import best
from octavo_engine.server.fields import Body, parse_body
from octavo_engine.server.responses import ResponsesBody
from octavo_engine.server.schemas import ChatBody, CompletionBody

HI = {"role": "user", "content": "hi"}
CHAT: dict[str, Any] = {"model": "m", "messages": [HI]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "hi"}
BODIES: list[tuple[type[Body], dict[str, Any]]] = [(ChatBody, CHAT), (CompletionBody, COMPLETION)]


def refusal(schema: type[Body], body: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse_body(schema, body)
    return caught.value


DOCUMENTED = (
    (ChatBody, chat_create_params.CompletionCreateParamsNonStreaming),
    (CompletionBody, completion_create_params.CompletionCreateParamsNonStreaming),
    (ResponsesBody, response_create_params.ResponseCreateParamsNonStreaming),
)


@pytest.mark.parametrize(("schema", "documented"), DOCUMENTED)
def test_each_field_that_the_official_client_knows_is_known(schema: type[Body], documented: Any) -> None:
    names = {name for base in documented.__mro__ for name in getattr(base, "__annotations__", {})}
    names |= set(documented.__required_keys__ | documented.__optional_keys__)
    assert len(names) > 15
    assert names <= set(schema.model_fields) | set(schema.unsupported)


def unsupported() -> Iterator[Any]:
    for schema, body in [*BODIES, (ResponsesBody, {"model": "m", "input": "hi"})]:
        for name, refused in schema.unsupported.items():
            yield pytest.param(schema, body, name, refused, id=f"{schema.__name__}-{name}")


@pytest.mark.parametrize(("schema", "body", "name", "refused"), list(unsupported()))
def test_a_refused_field_is_named_with_the_reason_unless_it_asks_for_nothing(schema, body, name, refused) -> None:
    assert name not in schema.model_fields
    for value in refused.harmless:
        parse_body(schema, body | {name: value})
    error = refusal(schema, body | {name: {"something": ["else"]}})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert refused.why in str(error)


@pytest.mark.parametrize(
    ("patch", "param"),
    [
        ({"messages": [HI | {"role": "root"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [HI, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
        ({"messages": [HI | {"tool_call_id": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant"}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": []}]}, "messages[0].tool_calls"),
        ({"messages": [HI | {"content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ({"messages": [HI | {"user": 1}]}, "messages[0].user"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options"),
    ],
)
def test_wrong_values_are_named(patch: dict[str, Any], param: str | None) -> None:
    assert refusal(ChatBody, CHAT | patch).param == param


@pytest.mark.parametrize(
    "patch",
    [
        {"best_of": 1, "n": 2},
        {"best_of": 2, "stream": True},
        {"max_tokens": 0},
        {"stream": True, "prompt_logprobs": 1},
        {"best_of": 9},
    ],
)
def test_what_completions_cannot_do(patch: dict[str, Any]) -> None:
    refusal(CompletionBody, COMPLETION | patch)


def test_messages_as_templates_know_them() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    broken = {"id": "c2", "function": {"name": "f", "arguments": '{"a": '}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "hi", "name": "Ada"},
        {"role": "assistant", "content": None, "tool_calls": [call, broken], "refusal": None},
        {"role": "tool", "content": "7", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It is 7.", "reasoning_content": "Hm."},
    ]
    body = parse_body(ChatBody, CHAT | {"messages": messages})
    system, user, calling, result, answer = (message.for_template() for message in body.messages)
    assert system == {"role": "system", "content": "a\nb"}
    assert user == {"role": "user", "content": "hi", "name": "Ada"}
    assert calling["content"] == ""
    assert [made["function"]["arguments"] for made in calling["tool_calls"]] == [{"a": [1]}, '{"a": ']
    assert result == {"role": "tool", "content": "7", "tool_call_id": "c1"}
    assert answer == {"role": "assistant", "content": "It is 7.", "reasoning_content": "Hm."}


def test_a_tool_is_given_to_the_template_as_it_was_written() -> None:
    function = {"name": "f", "description": "d", "parameters": {"type": "object", "default": None}}
    body = parse_body(ChatBody, CHAT | {"tools": [{"type": "function", "function": function}]})
    (tool,) = body.offered
    assert tool.for_template() == {"type": "function", "function": function}
    assert parse_body(ChatBody, CHAT | {"tools": [tool.model_dump()], "tool_choice": "none"}).offered == []


def outcome(text: str, *logprobs: float) -> Delta:
    return Delta(text, tuple(Sampled(1, TokenLogprob(1, value)) for value in logprobs), FinishReason.STOP)


def test_the_best_of_each_prompt_come_first() -> None:
    choices = [outcome("a", -2, -2), outcome("b", -1), outcome("c"), outcome("d", -3), outcome("e", -0.5, -0.7)]
    choices.append(outcome("f", -0.1, -9))
    assert [choice.text for choice in best(choices, 3, 2)] == ["b", "a", "e", "d"]
    assert best(choices, 1, 1) == choices


def test_the_table_has_every_field_once_with_a_word_on_it() -> None:
    made = rows([schema for schema, _ in BODIES])
    assert len({row.name for row in made}) == len(made)
    assert {row.name for row in made} == {
        name for schema, _ in BODIES for name in (*schema.model_fields, *schema.unsupported)
    }
    assert all(row.meaning and "|" not in row.meaning + row.values for row in made)
    by_name = {row.name: row for row in made}
    assert by_name["temperature"].statuses == (YES, YES)
    assert by_name["temperature"].values == "0 to 2"
    assert by_name["top_p"].values == "over 0, up to 1"
    assert by_name["max_tokens"].values == "at least 1 / at least 0"
    assert by_name["tool_choice"].values == "`none`, `auto`, `required` or object"
    assert by_name["echo"].statuses == (REFUSED, YES)
    assert by_name["echo"].values == "true or false (false)"
    assert by_name["user"].statuses == (IGNORED, IGNORED)
    assert by_name["store"].values == "only `null` or `false`"


def test_the_tables_stand_between_their_marks() -> None:
    marks = [f"{table.begin}\nof yesterday\n{table.end}" for table in TABLES]
    once = with_tables("before\n" + "\nbetween\n".join(marks) + "\nafter\n")
    assert once == with_tables(once)
    assert "yesterday" not in once
    assert once.startswith(f"before\n{TABLES[0].begin}\n| field | chat | completions |")
    assert once.endswith(f"|\n{TABLES[-1].end}\nafter\n")
    with pytest.raises(ValueError, match="lacks"):
        with_tables("nothing")
