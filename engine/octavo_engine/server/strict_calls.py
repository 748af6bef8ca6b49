"""What calls that a model may make are held to, in its own format: their names, and the schemas of strict tools.

All else that it says is free. See `structured.watching` for how a call is noticed, and `tools/` for how it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from octavo_engine.server.messages import Tool
from octavo_engine.server.tools import hermes, llama3, mistral
from octavo_engine.server.tools.enforced import JsonSchema, any_call, one_call, some_calls
from octavo_engine.server.tools.json_text import SPACE
from octavo_engine.structured import Mark, Openings, Spec, Start, spec
from octavo_engine.structured.vocabulary import Tokens

Functions = Mapping[str, JsonSchema | None]
# As much space as models put around what they write; a token may have some of what comes after a call as its end.
RULES = r"GAP: /[ \t\r\n]{1,8}/"


def strict_calls(format_name: str, tools: Sequence[Tool], tokenizer: Tokens, *, one: bool) -> Spec:
    """The form of each call in an answer that need not have any; raises RequestError.

    one: the answer ends with its first call.
    """
    functions = {tool.function.name: _held_to(tool) for tool in tools}
    return _FORMATS[format_name](functions, tokenizer, one)


def _held_to(tool: Tool) -> JsonSchema | None:
    """Arguments are an object, whether the schema says so or not: nothing else is read as a call."""
    return {"type": "object"} | (tool.function.parameters or {}) if tool.function.strict else None


def _hermes(functions: Functions, tokenizer: Tokens, one: bool) -> Spec:
    rules = f"start: GAP? call GAP? {_mark(hermes.CLOSE, tokenizer)} GAP?\n{RULES}"
    opening = Mark(hermes.OPEN.encode())
    openings = Openings(opening, None if one else opening, special=False)
    return spec.parts(rules, {"call": any_call(functions)}, openings, "tools")


def _llama3(functions: Functions, _tokenizer: Tokens, one: bool) -> Spec:
    """What begins with a brace is a call, since it cannot be told from one before its end."""
    first, following = (Start(b"{", llama3.TAG.encode(), space.encode()) for space in (SPACE, SPACE + ";,"))
    openings = Openings(first, None if one else following, special=True)
    call = any_call(functions, arguments="parameters")
    return spec.parts(f"start: GAP? call\n{RULES}", {"call": call}, openings, "tools")


def _mistral(functions: Functions, tokenizer: Tokens, one: bool) -> Spec:
    """Either of the two ways: a list, or a name and its arguments."""
    call_id, arguments = (_mark(mark, tokenizer) for mark in (mistral.CALL_ID, mistral.ARGUMENTS))
    schemas = {f"arguments{number}": one_call(parameters) for number, parameters in enumerate(functions.values())}
    named = [f"{json.dumps(name)} head {rule}" for name, rule in zip(functions, schemas, strict=True)]
    rules = (
        f"start: GAP? (calls | {' | '.join(named)}) GAP?\n"
        f"head: ({call_id} /[A-Za-z0-9_-]{{1,64}}/)? ({arguments})? GAP?\n{RULES}"
    )
    opening = Mark(mistral.MARK.encode())
    openings = Openings(opening, None if one else opening, special=True)
    return spec.parts(rules, {"calls": some_calls(functions, 1 if one else None)} | schemas, openings, "tools")


def _mark(mark: str, tokenizer: Tokens) -> str:
    """A mark in the grammar's notation: the control token that it is, or else text."""
    ids = tokenizer.encode(mark, add_special_tokens=False)
    control = [index for index in ids if index in tokenizer.special_ids]
    spelled = [index for index in control if tokenizer.token_bytes(index) == mark.encode()]
    return f"<[{spelled[0]}]>" if spelled else json.dumps(mark)


_FORMATS: dict[str, Callable[[Functions, Tokens, bool], Spec]] = {
    "hermes": _hermes,
    "llama3": _llama3,
    "mistral": _mistral,
}
