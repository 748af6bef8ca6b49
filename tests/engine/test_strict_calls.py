"""Calls that a model may make, held to the schemas of strict tools: what it begins is whole, and all else is free."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import numpy as np
import numpy.typing as npt
import openai
import pydantic
import pytest
import torch

from octavo_engine.request import Constraint, Request, SamplingParams
from octavo_engine.runtime.sampler import Sampler
from octavo_engine.server.messages import Tool
from octavo_engine.server.strict_calls import strict_calls
from octavo_engine.server.tools.formats import FORMATS
from octavo_engine.server.tools.reader import Reading
from octavo_engine.structured import Forms, Grammar
from octavo_engine.tokenizer import Tokenizer
from scripted_server import ScriptedModel
from scripted_talk import BOTH, CALLS, HERMES, LLAMA3, MISTRAL, held_to_form, joined, plain, saying, tokenizer_with

pytestmark = pytest.mark.engine

BY_NAME = {tool_format.name: tool_format for tool_format in FORMATS}
OPENINGS = {
    "hermes": ["It is <tool_call>", "<tool_call>", "<tool_call>\n"],
    "llama3": ["{", " {", "<|python_tag|>"],
    "mistral": ["Well. [TOOL_CALLS]", "[TOOL_CALLS]", "[TOOL_CALLS][", "[TOOL_CALLS]get"],
}
BEGINNINGS = {  # of what comes after the mark, without its space; no token of the vocabulary has more
    "hermes": ['{"name'],
    "llama3": ['{"name'],
    "mistral": ["[", "note", "get_weather"],
}
AGAIN = {"hermes": "\n<tool_call>", "llama3": "; {", "mistral": "[TOOL_CALLS]"}
WALKS, LONGEST = 6, 300


class get_weather(pydantic.BaseModel):  # noqa: N801 (its name is the tool's)
    """How warm it is."""

    city: Literal["Paris", "Nice"]
    days: int
    scale: Literal["C", "F"] | None


STRICT: Any = openai.pydantic_function_tool(get_weather)
LOOSE: Any = {"type": "function", "function": {"name": "note", "parameters": {"type": "object", "required": ["text"]}}}
SCHEMAS: dict[str, Any] = {"get_weather": STRICT["function"]["parameters"], "note": {"type": "object"}}
QUESTION: list[Any] = [{"role": "user", "content": "How warm is it in Paris?"}]


@pytest.fixture(scope="module")
def tokenizer(smollm2_gguf: Path) -> Tokenizer:
    return tokenizer_with(smollm2_gguf, HERMES)


@pytest.fixture(scope="module")
def forms(tokenizer: Tokenizer) -> Iterator[Forms]:
    made = Forms(tokenizer, tokenizer.eos_ids)
    yield made
    made.close()


def grammar_of(forms: Forms, tokenizer: Tokenizer, name: str, *, one: bool = False) -> Grammar:
    tools = [Tool.model_validate(tool) for tool in (STRICT, LOOSE)]
    return forms.compile(strict_calls(name, tools, tokenizer, one=one))


def may_come(constraint: Constraint, tokens: list[int], size: int) -> npt.NDArray[np.uint8]:
    """For each token of the vocabulary 1 if it is allowed, else 0."""
    bits = np.frombuffer(constraint.allowed(tokens, 0), np.uint8)
    return np.unpackbits(bits, bitorder="little")[:size]


def closing(tokenizer: Tokenizer) -> npt.NDArray[np.float64]:
    """How much a mind without taste that wants to come to an end likes each token."""
    weights = np.ones(tokenizer.vocab_size)
    weights[[tokenizer.encode(text, add_special_tokens=False)[-1] for text in ('"', "}", "]", ",")]] = 1e6
    return weights


def walk(constraint: Constraint, tokenizer: Tokenizer, texts: list[str], seed: int) -> list[int] | None:
    """Says the texts where it may say anything, and where not any token that is allowed; None: without an end."""
    draws, likes, tokens, said = np.random.default_rng(seed), closing(tokenizer), list[int](), iter(texts)
    while len(tokens) < LONGEST:
        allowed = may_come(constraint, tokens, tokenizer.vocab_size)
        if allowed[tokenizer.eos_ids[0]]:  # the answer may end, so no call is half done
            if (text := next(said, None)) is None:
                return tokens
            for token in tokenizer.encode(text, add_special_tokens=False):
                assert may_come(constraint, tokens, tokenizer.vocab_size)[token], text
                tokens.append(token)
        else:
            weights = allowed * likes
            tokens.append(int(draws.choice(len(weights), p=weights / weights.sum())))
    return None


def said(tokens: list[int], tokenizer: Tokenizer, name: str) -> tuple[str, list[tuple[str, str]]]:
    """The content, and the calls, as a client gets them."""
    text = tokenizer.decode(tokens, skip_special_tokens=not BY_NAME[name].special)
    reading = Reading(format=BY_NAME[name], names=frozenset(SCHEMAS))
    answer = reading.reader("x").push(text, last=True)
    return answer.content, [(part.name or "", part.arguments) for part in answer.calls]


def check_calls(calls: list[tuple[str, str]]) -> None:
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("name", BY_NAME)
def test_a_call_that_is_begun_is_one_in_the_end(forms: Forms, tokenizer: Tokenizer, name: str, *, one: bool) -> None:
    grammar, ended = grammar_of(forms, tokenizer, name, one=one), 0
    for seed in range(WALKS):
        texts = [OPENINGS[name][seed % len(OPENINGS[name])], *([] if one else [AGAIN[name]] * (seed % 3))]
        tokens = walk(grammar.start(), tokenizer, texts, seed)
        if tokens is None:
            continue
        ended += 1
        content, calls = said(tokens, tokenizer, name)
        assert len(calls) == 1 if one else len(calls) >= len(texts)
        assert content.strip() in ("", "It is", "Well.")
        check_calls(calls)
    assert ended > WALKS // 2


@pytest.mark.parametrize("name", BY_NAME)
def test_an_answer_ends_with_its_only_call(forms: Forms, tokenizer: Tokenizer, name: str) -> None:
    constraint = grammar_of(forms, tokenizer, name, one=True).start()
    tokens = walk(constraint, tokenizer, OPENINGS[name][:1], 5)
    assert tokens is not None
    (ends,) = np.nonzero(may_come(constraint, tokens, tokenizer.vocab_size))
    assert set(ends) == set(tokenizer.eos_ids)


@pytest.mark.parametrize(
    ("name", "text", "mark", "verdicts"),
    [
        ("hermes", "x <tool_call", b">", {False}),  # this vocabulary has `>=` and the like, but no `>{`
        ("mistral", "[TOOL_CALLS", b"]", {True, False}),
        ("llama3", " ", b"", {True, False}),
    ],
)
def test_a_token_may_open_a_call_only_if_it_goes_on_with_it(
    forms: Forms, tokenizer: Tokenizer, *, name: str, text: str, mark: bytes, verdicts: set[bool]
) -> None:
    grammar, size = grammar_of(forms, tokenizer, name), tokenizer.vocab_size
    allowed = may_come(grammar.start(), tokenizer.encode(text, add_special_tokens=False), size)
    spelled = {token: tokenizer.token_bytes(token) for token in range(size)}
    opening = [token for token, text in spelled.items() if text.startswith(mark or b"{") and len(text) > 1]
    assert {bool(allowed[token]) for token in opening} == verdicts
    for token in opening:
        rest = spelled[token].removeprefix(mark).decode(errors="replace").lstrip()
        begins = not rest or any(whole.startswith(rest) for whole in BEGINNINGS[name])
        assert allowed[token] == begins, spelled[token]


def test_every_format_of_calls_can_be_held_to_schemas(forms: Forms, tokenizer: Tokenizer) -> None:
    for name in BY_NAME:
        assert grammar_of(forms, tokenizer, name).watches is not None


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        *(("hermes", 0.0), ("mistral", 0.0), ("llama3", 0.0), ("hermes", 1.0), ("mistral", 1.0)),
        # Drawn, an answer may differ where it can open a call: what cannot come leaves its share to the others, and in
        # Llama 3's format that is at once.
    ],
)
def test_an_answer_without_a_call_is_what_it_would_be(
    forms: Forms, tokenizer: Tokenizer, name: str, temperature: float
) -> None:
    """The model has more tokens than the tokenizer, and says what is no text, control tokens and ends as well."""
    params = SamplingParams(temperature=temperature, max_tokens=99, seed=4)
    constraint = grammar_of(forms, tokenizer, name, one=True).start()
    free, held = (
        Request(id=str(form), tokens=[5], params=params, arrival=0.0, constraint=form) for form in (None, constraint)
    )
    sampler = Sampler(eos_ids=list(tokenizer.eos_ids))
    for step in range(60):
        logits = torch.randn(1, tokenizer.vocab_size + 300, generator=torch.Generator().manual_seed(step))
        logits[:, [0, 1, 2, tokenizer.vocab_size + 200]] += step % 7
        tokens = [sampler.sample(logits.clone(), [request]).wait()[0].token_id for request in (free, held)]
        assert tokens[0] == tokens[1]
        free.tokens.append(tokens[0])
        held.tokens.append(tokens[0])
    assert {token >= tokenizer.vocab_size for token in free.tokens} == {True, False}


CITY = '{"city": "Paris", "days": 2, "scale": null}'
OWN = {
    HERMES: f'Let me look.\n<tool_call>\n{{"name": "get_weather", "arguments": {CITY}}}\n</tool_call>',
    LLAMA3: f'{{"name": "get_weather", "parameters": {CITY}}}',
    MISTRAL: f'Let me look.[TOOL_CALLS][{{"name": "get_weather", "arguments": {CITY}}}]',
}


@pytest.mark.parametrize("parallel", [None, False])
@pytest.mark.parametrize("template", OWN)
def test_the_official_client_asks_as_its_own_helper_makes_it(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch, template: str, parallel: bool | None
) -> None:
    monkeypatch.setattr(ScriptedModel, "_sample", held_to_form(ScriptedModel._sample))
    with saying(smollm2_gguf, template, OWN[template]) as (_, client):
        asked: Any = {"model": "scripted", "messages": QUESTION, "tools": [STRICT, LOOSE], "tool_choice": "auto"}
        asked |= {} if parallel is None else {"parallel_tool_calls": parallel}
        answer = client.chat.completions.parse(**asked | {"tools": [STRICT]})  # it takes no others
        (call,) = answer.choices[0].message.tool_calls or ()
        assert call.function.parsed_arguments == get_weather(city="Paris", days=2, scale=None)
        found = plain(client.chat.completions.create(**asked))
        assert found["calls"] == [["get_weather", CITY]]
        assert found["content"] == ("" if template == LLAMA3 else "Let me look.")
        assert found == joined(client.chat.completions.create(**asked, stream=True))


def test_responses_hold_calls_as_well(smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptedModel, "_sample", held_to_form(ScriptedModel._sample))
    tool = {"type": "function", "strict": True, "name": "get_weather", "parameters": SCHEMAS["get_weather"]}
    with saying(smollm2_gguf, HERMES, OWN[HERMES]) as (_, client):
        asked: Any = {"model": "scripted", "input": "How warm is it in Paris?", "tools": [tool]}
        message, call = client.responses.create(**asked).output
        assert (message.type, call.type, call.name, call.arguments) == ("message", "function_call", "get_weather", CITY)
        events = client.responses.create(**asked, stream=True)
        parts = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        assert "".join(parts) == CITY


NOTE = '<tool_call>{"name": "note", "arguments": {"any": [1]}}</tool_call>'


@pytest.mark.parametrize(
    ("template", "text", "calls"),
    [
        (HERMES, "It is warm {here}.", 0),
        (HERMES, OWN[HERMES] + "\n" + NOTE, 2),
        (HERMES, OWN[HERMES] + " and " + NOTE + " more", 2),
        (BOTH, "<think>Shall I look?</think>" + NOTE, 1),
        (LLAMA3, "It is {warm}.", 0),
        (LLAMA3, OWN[LLAMA3] + '; {"name": "note", "parameters": {}}', 2),
        (MISTRAL, "[TOOL_CALLS]note[ARGS]{}", 1),
    ],
)
def test_what_may_be_said_beside_strict_tools(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch, template: str, text: str, calls: int
) -> None:
    with saying(smollm2_gguf, template, text) as (_, client):
        asked: Any = {"model": "scripted", "messages": QUESTION}
        loose = plain(client.chat.completions.create(**asked, tools=[LOOSE]))
        monkeypatch.setattr(ScriptedModel, "_sample", held_to_form(ScriptedModel._sample))
        found = plain(client.chat.completions.create(**asked, tools=[STRICT, LOOSE]))
        assert len(found["calls"]) == calls
        assert found == joined(client.chat.completions.create(**asked, tools=[STRICT, LOOSE], stream=True))
        if template != LLAMA3:  # there the names of tools tell calls from text
            assert found == loose


@pytest.mark.parametrize(
    ("template", "text", "parallel"),
    [
        (HERMES, '<tool_call>{"name": "fly", "arguments": {}}</tool_call>', None),
        (HERMES, '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>', None),
        (HERMES, '<tool_call>{"name": "note", "arguments": []}</tool_call>', None),
        (HERMES, "<tool_call> nothing", None),
        (HERMES, '<tool_call>{"name": "note", "arguments": {}}', None),
        (HERMES, NOTE + NOTE, False),
        (LLAMA3, '{"an": "answer in JSON"}', None),
        (LLAMA3, "<|python_tag|>print()", None),
        (LLAMA3, '{"name": "note", "parameters": {}}; {"name": "note", "parameters": {}}', False),
        (MISTRAL, '[TOOL_CALLS][{"name": "note", "arguments": {}}, {"name": "note", "arguments": {}}]', False),
        (MISTRAL, "[TOOL_CALLS]get_weather[ARGS]{}", None),
        (MISTRAL, "[TOOL_CALLS]get_weathers[ARGS]{}", None),
    ],
)
def test_what_is_no_such_call_cannot_be_said(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch, template: str, text: str, parallel: bool | None
) -> None:
    monkeypatch.setattr(ScriptedModel, "_sample", held_to_form(ScriptedModel._sample))
    asked: Any = {} if parallel is None else {"parallel_tool_calls": parallel}
    with saying(smollm2_gguf, template, text) as (_, client), pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="scripted", messages=QUESTION, tools=[STRICT, LOOSE], **asked)


@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_in_the_midst_of_a_call_is_the_clients_to_mend(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch, *, stream: bool
) -> None:
    monkeypatch.setattr(ScriptedModel, "_sample", held_to_form(ScriptedModel._sample))
    hard = {"type": "string", "pattern": "^(?:[^a-z].*|((([a-z]{1,30}){1,30}){1,30}){1,30})$"}
    parameters = {"type": "object", "properties": {"word": hard}, "required": ["word"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
    begun, letters = '<tool_call>{"name": "f", "arguments": {"word": "', "abcdefghijklmnopqrstuvwxyz" * 3
    with saying(smollm2_gguf, HERMES, begun) as (server, _):
        encode = server.context.tokenizer.encode
        spelled = [encode(letter, add_special_tokens=False)[0] for letter in letters]
        server.model.script[:] = [*server.model.script[:-1], *spelled]
        answer = server.post("/v1/chat/completions", messages=QUESTION, tools=[tool], stream=stream)
        assert answer.status_code == (200 if stream else 400), answer.text
        error = json.loads(answer.text.strip().removeprefix("data: ").rpartition("\n\ndata: ")[2])["error"]
        assert (error["code"], error["param"]) == ("form_too_complex", "tools")
        assert " tokens of a call: " in error["message"]


def test_tools_of_which_none_is_strict_cost_nothing(smollm2_gguf: Path) -> None:
    with saying(smollm2_gguf, HERMES, CALLS) as (server, client):
        for tools in ([LOOSE], [LOOSE, LOOSE | {"function": LOOSE["function"] | {"name": "n", "strict": False}}]):
            client.chat.completions.create(model="scripted", messages=QUESTION, tools=tools)
            assert server.recorder.ended[-1].constraint is None
        client.chat.completions.create(model="scripted", messages=QUESTION, tools=[STRICT], tool_choice="none")
        assert server.recorder.ended[-1].constraint is None
