"""Chat templates: Jinja from the checkpoint, data of unknown origin, rendered in a sandbox with a size limit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from octavo_engine.errors import CheckpointInvalid, RequestError

Message = Mapping[str, Any]
MAX_RENDERED_CHARACTERS = 32 * 1024 * 1024  # well above the longest request body with the template's own text around it


class _TrainingSpans(Extension):
    """`{% generation %}` marks what training learns from; here its body is rendered as if the tag were not there."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Refused(TemplateError):
    """The template itself rejected the messages, through `raise_exception`."""


def _raise_exception(message: str) -> None:
    raise _Refused(message)


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
    """JSON without Jinja's HTML escapes, which would change the prompt."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _TrainingSpans]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


class ChatTemplate:
    """One compiled template."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str | None],
        *,
        max_characters: int = MAX_RENDERED_CHARACTERS,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`special_tokens` are names for the template, such as `bos_token`. Raises CheckpointInvalid for bad syntax."""
        try:
            self._template = _environment(now).from_string(source)
        except (TemplateSyntaxError, RecursionError) as error:
            raise CheckpointInvalid(f"the chat template is not valid Jinja: {error}") from error
        self._special_tokens = {name: token or "" for name, token in special_tokens.items()}
        self._max_characters = max_characters

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """The prompt's text; raises RequestError when the template refuses the messages or renders too much."""
        pieces = self._template.generate(
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            **self._special_tokens,
        )
        rendered: list[str] = []
        room = self._max_characters
        try:
            for piece in pieces:
                room -= len(piece)
                if room < 0:
                    raise RequestError("the chat template renders too much text", param="messages")
                rendered.append(piece)
        except _Refused as error:
            raise RequestError(f"the model's chat template: {error.message}", param="messages") from error
        except RequestError:
            raise
        except Exception as error:  # a template may fail in any way Python can
            raise RequestError("the model's chat template cannot render these messages", param="messages") from error
        return "".join(rendered)
