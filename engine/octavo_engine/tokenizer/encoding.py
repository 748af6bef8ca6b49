"""Text to ids without stopping the other threads."""

from __future__ import annotations

import tokenizers


def token_ids(backend: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """The ids of `text`. The batch call lets go of the interpreter's lock, the plain one holds it for seconds."""
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return list(encoding.ids)
