"""Keeps control tokens in a client's messages plain text, while the chat template's own stay control tokens.

A template turns messages into one string, after which nobody can tell the template's `<|im_end|>` from a user's. So
each control token in a message is broken with a secret mark before rendering. When a mark comes out of the template,
the tokens that are still whole are the template's: they are renamed with another secret, the marks are removed, and a
twin of the tokenizer that knows the control tokens by their secret names alone encodes the text. Without marks, the
ordinary tokenizer encodes it as always.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import tokenizers

from octavo_engine.tokenizer.chat_template import Message
from octavo_engine.tokenizer.encoding import token_ids


class ControlTokens:
    """The control tokens of one tokenizer."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        added = backend.get_added_tokens_decoder().values()
        special = {token.content for token in added if token.special}
        markup = {token.content for token in added if not token.special and _is_markup(token.content)}
        self._names = special | markup
        self._in_any_role = _beginning_of(special | markup)
        # What a model says, such as <think>, is text with markup tokens in it, and comes back like that in its history.
        self._in_assistant = _beginning_of(special)
        self._mark = f"\ue000{secrets.token_hex(8)}\ue001"
        self._secret = f"\ue002{secrets.token_hex(8)}\ue003"

    def guard(self, message: Message) -> dict[str, Any]:
        """A copy of `message` in which control tokens are broken, everywhere but in its role."""
        pattern = self._in_assistant if message.get("role") == "assistant" else self._in_any_role
        return {key: value if key == "role" else self._break(value, pattern) for key, value in message.items()}

    def guard_all(self, values: Any) -> Any:
        """The same for whatever else a client gives to the template: JSON of any shape."""
        return self._break(values, self._in_any_role)

    def _break(self, value: Any, pattern: re.Pattern[str] | None) -> Any:
        if pattern is None:
            return value
        if isinstance(value, str):
            return pattern.sub(lambda match: match[0] + self._mark, value)
        if isinstance(value, Mapping):
            return {self._break(key, pattern): self._break(item, pattern) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._break(item, pattern) for item in value]
        return value

    def encode(self, rendered: str) -> list[int]:
        """Token ids of a template's output; only control tokens that are not broken become control tokens."""
        if self._mark not in rendered:
            return token_ids(self._backend, rendered, add_special_tokens=False)
        names = re.compile(_any_of(self._names))
        text = names.sub(lambda match: self._secret + match[0], rendered).replace(self._mark, "")
        twin, real_ids = self._twin
        return [real_ids.get(index, index) for index in token_ids(twin, text, add_special_tokens=False)]

    @cached_property
    def _twin(self) -> tuple[tokenizers.Tokenizer, dict[int, int]]:
        """The tokenizer with renamed control tokens, and its added tokens' ids in terms of the real ones."""
        description = json.loads(self._backend.to_str())
        renamed: dict[str, int] = {}
        for token in description["added_tokens"]:
            if token["content"] in self._names:
                token.update(content=self._secret + token["content"], normalized=False)
            renamed[token["content"]] = token["id"]
        twin = tokenizers.Tokenizer.from_str(json.dumps(description))
        return twin, {token: renamed[name] for name, token in twin.get_vocab().items() if name in renamed}


def _is_markup(token: str) -> bool:
    """`<think>` and `[INST]` steer a model; other added tokens, such as runs of spaces, are ordinary text."""
    return (token[:1], token[-1:]) in (("<", ">"), ("[", "]"))


def _any_of(names: Iterable[str]) -> str:
    """A pattern of the names, longest first, as the tokenizer prefers them."""
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))


def _beginning_of(names: Iterable[str]) -> re.Pattern[str] | None:
    """Matches the first character of each occurrence, overlapping ones too."""
    longer = [name for name in names if len(name) > 1]
    return re.compile(f"(?=(?:{_any_of(longer)}))(?s:.)") if longer else None
