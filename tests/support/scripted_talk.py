"""Servers whose model says a given text, under a template that knows tools or thoughts, and the official client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import openai

from octavo_engine.tokenizer import Tokenizer, load_tokenizer
from patience import PATIENCE_SECONDS
from scripted_server import ScriptedServer, scripted_server

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


def prompt_of(server: ScriptedServer) -> str:
    """The prompt of the latest request, as text."""
    request = server.recorder.ended[-1]
    return server.context.tokenizer.decode(request.tokens[: request.num_prompt], skip_special_tokens=False)
