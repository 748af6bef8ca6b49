"""Chat templates of known models: rendered here as transformers renders them, told apart by how they write calls, and
what they make of a call is read as that call, however it is cut.

The templates come out of TRL's package, which keeps those of many models as their makers ship them; those of Mistral's
models are written by Mistral's own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import transformers

from client_environments import Clients, Place
from octavo_engine.errors import CheckpointInvalid, RequestError
from octavo_engine.server.fields import parse_body
from octavo_engine.server.schemas import ChatBody
from octavo_engine.server.tools import Formats, Reading
from octavo_engine.tokenizer.chat_template import ChatTemplate

pytestmark = pytest.mark.engine

FAMILIES = {
    **dict.fromkeys(("qwen2_5", "qwen3", "qwen3_instruct_2507"), "hermes"),
    **dict.fromkeys(("llama3_1", "llama3_2"), "llama3"),
    **{f"mistral_{kind}": "mistral" for kind in ("v3_spm", "v3", "v7", "v11", "v13")},
}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
NOWHERE = Place("", "", "")
ENDS = ("</s>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>")
NOW = {"date_string": "30 Nov 2026"}  # what some templates say, unless they are told a day
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "日本, too"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
WEATHER = {"name": "get_weather", "description": "The <weather> & more.", "parameters": CITY}
TOOLS = [
    {"type": "function", "function": WEATHER},
    {"type": "function", "function": {"name": "time", "description": "Now.", "parameters": NOTHING}},
]
USER = {"role": "user", "content": "How warm is it in 東京, and <b>when</b>?"}
ARGUMENTS = '{"city": "東京 \\"</tool_call>\\"", "days": 2}'
CALL = {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": ARGUMENTS}}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "21 °C", "tool_call_id": "call12345"}
SYSTEM = {"role": "system", "content": "Be brief."}
TALKS: dict[str, list[Any]] = {
    "one turn": [USER],
    "after a system message": [SYSTEM, USER],
    "several turns": [USER, {"role": "assistant", "content": "21 °C."}, USER],
    "after a call": [USER, CALLED, RESULT],
}


@pytest.fixture(scope="module")
def templates(clients: Clients) -> dict[str, str]:
    of_mistral: dict[str, str] = clients.run_python("mistral_templates.py", NOWHERE)
    return clients.templates() | of_mistral


@pytest.fixture(scope="module")
def tokenizer(smollm2_checkpoint: Path) -> Any:
    """transformers' renderer; of the tokenizer it takes the special tokens only."""
    made = transformers.AutoTokenizer.from_pretrained(smollm2_checkpoint)
    for name, token in TOKENS.items():
        setattr(made, name, token)
    return made


def body_of(messages: list[Any], tools: list[Any]) -> ChatBody:
    return parse_body(ChatBody, {"model": "m", "messages": messages} | ({"tools": tools} if tools else {}))


@cache
def compiled(template: str) -> ChatTemplate:
    return ChatTemplate(template, TOKENS)


def ours(template: str, messages: list[Any], tools: list[Any], *, open_answer: bool = True) -> str | None:
    """The prompt as the server makes it of a body; None where the template refuses it."""
    body = body_of(messages, tools)
    try:
        return compiled(template).render(
            [message.for_template() for message in body.messages],
            add_generation_prompt=open_answer,
            tools=[tool.for_template() for tool in body.offered],
            variables=NOW,
        )
    except RequestError:
        return None


def theirs(tokenizer: Any, template: str, messages: list[Any], tools: list[Any]) -> str | None:
    """The same through transformers, from what the body says of messages and tools."""
    body = body_of(messages, tools)
    try:
        text: str = tokenizer.apply_chat_template(
            [message.for_template() for message in body.messages],
            tools=[tool.for_template() for tool in body.offered] or None,
            chat_template=template,
            tokenize=False,
            add_generation_prompt=True,
            **NOW,
        )
    except Exception:  # a template fails in any way that Python can
        return None
    return text


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("tools", [[], TOOLS], ids=["plain", "tools"])
def test_families_that_call_tools_are_rendered_to_the_letter(
    templates: dict[str, str], tokenizer: Any, *, name: str, talk: str, tools: list[Any]
) -> None:
    found = ours(templates[name], TALKS[talk], tools)
    assert found is not None
    assert found == theirs(tokenizer, templates[name], TALKS[talk], tools)
    assert ("get_weather" in found) == bool(tools or talk == "after a call")


def test_all_other_templates_too(templates: dict[str, str], tokenizer: Any) -> None:
    rendered = 0
    for name, template in templates.items():
        for talk in ("one turn", "after a system message", "several turns"):
            found = ours(template, TALKS[talk], [])
            assert found == theirs(tokenizer, template, TALKS[talk], []), (name, talk)
            rendered += found is not None
    assert rendered > 2 * len(templates) > 40


@pytest.mark.parametrize(("name", "format"), FAMILIES.items())
def test_each_is_known_by_how_it_writes_calls(templates: dict[str, str], name: str, format: str) -> None:
    found = Formats.of(templates[name]).tools
    assert found is not None
    assert found.name == format


def test_thoughts_are_known_too(templates: dict[str, str]) -> None:
    assert {name: Formats.of(templates[name]).thinks for name in FAMILIES} == {
        name: name == "qwen3" for name in FAMILIES
    }


def test_calls_that_are_no_json_are_not_taken_for_those_that_are(templates: dict[str, str]) -> None:
    others = [name for name, text in templates.items() if "<tool_call>" in text and name not in FAMILIES]
    written_otherwise = [name for name in others if "<function=" in templates[name] or "<arg_key>" in templates[name]]
    assert len(written_otherwise) > 3
    assert [name for name in written_otherwise if Formats.of(templates[name]).tools is not None] == []


def cut(text: str, chance: random.Random) -> Iterable[str]:
    places = sorted(chance.sample(range(len(text) + 1), chance.randint(0, min(12, len(text)))))
    return (text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True))


@pytest.mark.parametrize(("name", "format"), FAMILIES.items())
def test_what_a_template_makes_of_a_call_is_read_as_that_call(
    templates: dict[str, str], name: str, format: str
) -> None:
    """So a model that writes as its template does is understood; and the call goes back as it came."""
    prompt = ours(templates[name], [USER], TOOLS)
    whole = ours(templates[name], [USER, CALLED], TOOLS, open_answer=False)
    assert prompt is not None
    assert whole is not None
    assert whole.startswith(prompt)
    answer = whole.removeprefix(prompt).rstrip()
    for end in ENDS:
        answer = answer.removesuffix(end)
    formats = Formats.of(templates[name])
    reading = Reading(format=formats.tools, names={"get_weather", "time"}, thinking=False if formats.thinks else None)
    chance, found = random.Random(name), set()
    for _ in range(50):
        reader = reading.reader("answer-0")
        said = [*(reader.push(piece) for piece in cut(answer, chance)), reader.push("", last=True)]
        assert "".join(each.content for each in said).strip() == ""
        parts = [call for each in said for call in each.calls]
        assert [part.name for part in parts if part.name is not None] == ["get_weather"]
        found.add("".join(part.arguments for part in parts))
    (arguments,) = found
    again = CALLED | {"tool_calls": [CALL | {"function": {"name": "get_weather", "arguments": arguments}}]}
    assert ours(templates[name], [USER, again], TOOLS, open_answer=False) == whole


def test_a_template_that_is_no_jinja_is_told() -> None:
    with pytest.raises(CheckpointInvalid):
        ChatTemplate("{% for %}", TOKENS)
