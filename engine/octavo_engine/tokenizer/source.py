"""What a tokenizer is built from, whichever file format it came in."""

from __future__ import annotations

from dataclasses import dataclass

import tokenizers


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSource:
    """The backend, which knows its added tokens and its BOS rule, and the facts around it."""

    backend: tokenizers.Tokenizer
    eos_ids: tuple[int, ...] = ()
    bos_token: str | None = None
    eos_token: str | None = None
    chat_template: str | None = None
