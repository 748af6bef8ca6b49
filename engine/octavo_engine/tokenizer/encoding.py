"""Text to ids without stopping the other threads."""

from __future__ import annotations

import tokenizers

from octavo_engine.errors import RequestError

PANIC = "PanicException"  # the library's own; no module has it, and it is no Exception


def token_ids(backend: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """The ids of `text`. The batch call lets go of the interpreter's lock, the plain one holds it for seconds.

    Raises RequestError where the model's own pattern gives up: its engine bounds how often it tries (a tenth of a
    second), so that no text keeps a thread for ever.
    """
    try:
        (encoding,) = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    except BaseException as error:
        if type(error).__name__ != PANIC:
            raise
        raise RequestError("the model's tokenizer cannot take this text apart: its pattern gives up on it") from None
    return list(encoding.ids)
