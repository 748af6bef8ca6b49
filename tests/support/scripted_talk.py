"""Servers whose model says a given text, under a template that knows tools or thoughts, and the official client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai

from octavo_engine.errors import FormTooComplex
from octavo_engine.request import Request, Sampled
from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from patience import PATIENCE_SECONDS
from scripted_server import ScriptedModel, ScriptedServer, scripted_server

TURNS = (
    "{% if tools %}tools: {{ tools | map(attribute='function') | map(attribute='name') | join }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }} of {{ c.function.arguments.city }}{% endfor %}"
    "{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if forced %}<think>\n{% endif %}{% endif %}"
)
HERMES = TURNS + "{# <tool_call> #}"
THINKING = TURNS + "{# </think> #}"
BOTH = TURNS + "{# <tool_call> </think> #}"
LLAMA3 = TURNS + "{# <|python_tag|> #}"
MISTRAL = TURNS + "{# [TOOL_CALLS] #}"
CALLS = (
    'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris 日本"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Nice"}}\n</tool_call>'
)


@cache
def tokenizer_with(gguf: Path, template: str) -> Tokenizer:
    """The model's tokenizer under another template; reading it takes a second."""
    with TemporaryDirectory() as place:
        (Path(place) / "template.jinja").write_text(template)
        return load_tokenizer(str(gguf), f"{place}/template.jinja")


@contextmanager
def saying(gguf: Path, template: str, text: str) -> Iterator[tuple[ScriptedServer, openai.OpenAI]]:
    """A server with that template, whose model says that text, and a client of it."""
    tokenizer = tokenizer_with(gguf, template)
    with scripted_server(tokenizer) as server:
        server.model.script[:] = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_ids[0]]
        with openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_SECONDS
        ) as client:
            yield server, client


def held_to_form(sample: Any) -> Any:
    """Sampling that fails where the script says what the request's form does not allow."""

    def held(model: ScriptedModel, request: Request) -> Sampled:
        sampled: Sampled = sample(model, request)
        assert request.constraint is not None
        token = sampled.token_id
        try:
            allowed = request.constraint.allowed(request.tokens, request.num_prompt)
        except FormTooComplex as error:
            return Sampled(token, error=error)
        return sampled if allowed[token // 8] >> token % 8 & 1 else Sampled(token, error="not of the form")

    return held


def joined(chunks: Any) -> dict[str, Any]:
    """What a stream's chunks say together, as a plain choice would."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "calls": []}
    end = None
    for chunk in chunks:
        (choice,) = chunk.choices
        assert end is None, "a chunk after the end"
        end = choice.finish_reason
        message["content"] += choice.delta.content or ""
        message["reasoning_content"] += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or []:
            if call.id is not None:
                assert (call.index, call.type) == (len(message["calls"]), "function")
                message["calls"].append([call.function.name, ""])
            message["calls"][call.index][1] += call.function.arguments
    return message | {"end": end}


def plain(answer: Any) -> dict[str, Any]:
    """What a plain answer's only choice says, in the same words."""
    (choice,) = answer.choices
    calls = [[call.function.name, call.function.arguments] for call in choice.message.tool_calls or []]
    thought = getattr(choice.message, "reasoning_content", None) or ""
    content = choice.message.content or ""
    return {"content": content, "reasoning_content": thought, "calls": calls, "end": choice.finish_reason}


def prompt_of(server: ScriptedServer) -> str:
    """The prompt of the latest request, as text."""
    request = server.recorder.ended[-1]
    return server.context.tokenizer.decode(request.tokens[: request.num_prompt], skip_special_tokens=False)
