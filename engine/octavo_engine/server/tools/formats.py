"""Which format a model calls tools in and whether it thinks aloud, found out from its chat template."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from octavo_engine.server.tools import thinking
from octavo_engine.server.tools.hermes import Hermes
from octavo_engine.server.tools.llama3 import Llama3
from octavo_engine.server.tools.message import Message
from octavo_engine.server.tools.mistral import Mistral


class Parser(Protocol):
    """Takes a text apart, character by character: so it cannot matter where the pieces of a stream begin and end."""

    def push(self, char: str) -> None:
        """Take one character."""

    def finish(self) -> None:
        """The text has ended: nothing is held back any more."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls."""

    name: str
    signs: tuple[str, ...]  # a chat template with one of them is of this format
    parser: Callable[[Message, Collection[str]], Parser]
    special: bool  # its marks are special tokens, which otherwise stay out of a text
    call_id: Callable[[str], str]  # from something unique, as the format's templates want it
    unlike: tuple[str, ...] = ()  # unless one of these is there, too: the mark is the same, and what it holds is not

    def shown_by(self, template: str) -> bool:
        """Whether a chat template writes calls in this way."""
        return any(sign in template for sign in self.signs) and not any(sign in template for sign in self.unlike)


def call_id(unique: str) -> str:
    """An id as OpenAI's look."""
    return "call_" + hashlib.sha256(unique.encode()).hexdigest()[:24]


def _nine_letters(unique: str) -> str:
    """Mistral's templates refuse any other id."""
    return hashlib.sha256(unique.encode()).hexdigest()[:9]


FORMATS = (
    ToolFormat(
        "hermes",
        ("<tool_call>",),
        lambda message, _: Hermes(message),
        special=False,
        call_id=call_id,
        unlike=("<function=", "<arg_key>"),  # Qwen3.5 and Nemotron 3; GLM-4.5
    ),
    ToolFormat("mistral", ("[TOOL_CALLS]",), lambda message, _: Mistral(message), special=True, call_id=_nine_letters),
    ToolFormat(
        "llama3",
        ("<|python_tag|>", '"parameters": dictionary of argument name'),
        Llama3,
        special=True,
        call_id=call_id,
    ),
)


@dataclass(frozen=True, slots=True)
class Formats:
    """How this server's model writes what is not plain text. `tools` None: it calls none; see `of`."""

    tools: ToolFormat | None = None
    thinks: bool = False

    @classmethod
    def of(cls, template: str | None, tools: str = "auto", reasoning: str = "auto") -> Formats:
        """What a chat template shows, unless `tools` names a format, or `reasoning` says `think` or `none`."""
        shown = template or ""
        if tools == "auto":
            found = next((form for form in FORMATS if form.shown_by(shown)), None)
        else:
            found = next((form for form in FORMATS if form.name == tools), None)
        return cls(found, thinking.CLOSE in shown if reasoning == "auto" else reasoning == "think")
