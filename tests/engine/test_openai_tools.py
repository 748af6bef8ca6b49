"""Calls that have to be made, by the real engine and the real model, in the process that users start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest

from patience import PATIENCE_SECONDS
from scripted_talk import HERMES
from serving_process import serving_process

pytestmark = pytest.mark.engine

CITIES = ["Paris", "Nice", "Lyon"]
CITY = {"type": "object", "properties": {"city": {"enum": CITIES}}, "required": ["city"], "additionalProperties": False}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY, "strict": True}}]
LOOSE: list[Any] = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]


QUESTION: Any = {"role": "user", "content": "Weather?"}


@pytest.fixture(scope="module")
def ask(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Asks for an answer to a chat."""
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text(HERMES)
    flags = (f"--chat-template={template}", "--max-model-len=512", "--max-num-seqs=4")
    with serving_process(smollm2_gguf, "--served-model-name=smollm2", *flags) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_SECONDS)
        yield partial(client.chat.completions.create, model="smollm2", messages=[QUESTION], tools=TOOLS)


def arguments_in(chunks: Any) -> str:
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
    return "".join(part.function.arguments for part in parts)


def test_a_model_that_knows_no_tools_calls_one_when_it_has_to(ask: Callable[..., Any]) -> None:
    asked: Any = {"temperature": 1.0, "seed": 3, "max_tokens": 60, "tool_choice": "required"}
    asked |= {"parallel_tool_calls": False}
    choice = ask(**asked).choices[0]
    (call,) = choice.message.tool_calls or ()
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_weather")
    assert json.loads(call.function.arguments)["city"] in CITIES
    assert arguments_in(ask(**asked, stream=True)) == call.function.arguments


def test_a_call_that_it_makes_of_itself_is_held_to_the_schema(ask: Callable[..., Any]) -> None:
    """It has seen such calls, of places that the schema does not have."""
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    messages = [QUESTION, {"role": "assistant", "content": call}] * 2 + [QUESTION]
    asked: Any = {"messages": messages, "temperature": 0.0, "max_tokens": 60, "parallel_tool_calls": False}
    choice = ask(**asked).choices[0]
    (call,) = choice.message.tool_calls or ()
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_weather")
    assert json.loads(call.function.arguments)["city"] in CITIES
    assert arguments_in(ask(**asked, stream=True)) == call.function.arguments
    loose = ask(**asked | {"tools": LOOSE}).choices[0].message.tool_calls
    assert json.loads(loose[0].function.arguments) == {"city": "Rome"}


def test_an_answer_without_a_call_is_the_same_beside_strict_tools(ask: Callable[..., Any]) -> None:
    asked: Any = {"messages": [{"role": "user", "content": "Count to ten."}], "temperature": 0.0, "max_tokens": 40}
    asked |= {"logprobs": True}
    strict, loose = (ask(**asked, tools=tools).choices[0] for tools in (TOOLS, LOOSE))
    assert strict.message.content
    assert strict == loose
