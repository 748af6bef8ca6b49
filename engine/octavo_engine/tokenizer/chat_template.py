"""Chat templates: Jinja from the checkpoint, data of unknown origin, in a sandbox that bounds size and time."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from octavo_engine.errors import CheckpointInvalid, RequestError
from octavo_engine.tokenizer.bounded_jinja import BoundedSandbox, Budget, TookTooLong

Message = Mapping[str, Any]
MAX_RENDERED_CHARACTERS = 32 * 1024 * 1024  # well above the longest request body with the template's own text around it
MAX_RENDER_SECONDS = 2.0  # of one processor; a conversation of 4 MiB takes a tenth of it
# What a client may not set: these come from the conversation itself.
_OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


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


def _to_json(
    value: Any,
    indent: int | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without Jinja's HTML escapes, which would change the prompt."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)


def _environment(now: Callable[[], datetime]) -> BoundedSandbox:
    environment = BoundedSandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _TrainingSpans])
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
        max_seconds: float = MAX_RENDER_SECONDS,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`special_tokens` are names for the template, such as `bos_token`. Raises CheckpointInvalid for bad syntax."""
        environment = _environment(now)
        try:
            self._template = environment.from_string(source)
            read = environment.names_read(source)
        except (TemplateSyntaxError, RecursionError) as error:
            raise CheckpointInvalid(f"the chat template is not valid Jinja: {error}") from error
        self.takes_tools = "tools" in read
        self.variables = read - _OURS - set(special_tokens) - set(environment.globals)
        self._special_tokens = {name: token or "" for name, token in special_tokens.items()}
        self._max_characters = max_characters
        self._max_seconds = max_seconds
        self._end = f"\ue004{secrets.token_hex(8)}\ue005"

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text. `variables` are names of `self.variables`.

        Raises RequestError when the template refuses the messages, renders too much or takes too long.
        """
        given = dict(variables or {}) | self._special_tokens
        pieces = self._template.generate(
            **given,
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            tools=list(tools) or None,
            documents=None,
            **{Budget.NAME: Budget(self._max_seconds)},
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
        except TookTooLong:
            raise RequestError("the model's chat template takes too long to render", param="messages") from None
        except RequestError:
            raise
        except Exception as error:  # a template may fail in any way Python can
            raise RequestError("the model's chat template cannot render these messages", param="messages") from error
        return "".join(rendered)

    def render_open(self, messages: Sequence[Message], **options: Any) -> str:
        """The same, up to where the text of the last message ends: what a template writes after it is left out.

        The end is marked with a secret, so that it does not matter what a template does to the text around. Options
        are those of `render` but `add_generation_prompt`.
        """
        last = dict(messages[-1]) | {"content": f"{messages[-1]['content']}{self._end}"}
        text = self.render([*messages[:-1], last], add_generation_prompt=False, **options)
        begin, end, _ = text.rpartition(self._end)
        if not end:
            message = "the model's chat template does not show the last message's text, so it cannot be continued"
            raise RequestError(message, param="continue_final_message")
        return begin
