"""Answers in OpenAI's form. A stream's chunks and the plain answer are made from the same deltas by the same code."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo_engine.output import Delta
from octavo_engine.request import Request, Sampled
from octavo_engine.tokenizer import Tokenizer

Json = dict[str, Any]


def merge(deltas: Iterable[Delta]) -> Delta:
    """All deltas of one request as one."""
    parts = list(deltas)
    tokens = tuple(token for part in parts for token in part.tokens)
    text = "".join(part.text for part in parts)
    return Delta(text, tokens, parts[-1].finish_reason, parts[-1].stop_reason)


def usage(requests: Sequence[Request], choices_per_prompt: int) -> Json:
    """Token counts of a whole answer. A prompt counts once, however many choices it has."""
    firsts = requests[::choices_per_prompt]
    prompt = sum(request.num_prompt for request in firsts)
    completion = sum(request.num_output for request in requests)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(request.num_cached for request in firsts)},
    }


class Form(Protocol):
    """How one route writes its choices."""

    plain: str  # the `object` of a plain answer
    chunk: str  # the `object` of a stream's chunk

    @property
    def tells_tokens(self) -> bool:
        """True when a choice says more of its tokens than their text."""

    def whole(self, index: int, delta: Delta) -> Json:
        """A choice of the plain answer."""

    def opening(self, index: int) -> Json | None:
        """The choice of a stream's first chunk, before any text."""

    def piece(self, index: int, delta: Delta) -> Json:
        """A choice of a later chunk."""


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Puts choices into answers and chunks with what they have in common."""

    id: str
    model: str
    form: Form
    created: int = field(default_factory=lambda: int(time.time()))

    def answer(self, deltas: Sequence[Delta], counts: Json) -> Json:
        """The plain answer."""
        choices = [self.form.whole(index, delta) for index, delta in enumerate(deltas)]
        return self._envelope(self.form.plain, choices) | {"usage": counts}

    def chunk(self, choice: Json) -> Json:
        """A chunk with one choice."""
        return self._envelope(self.form.chunk, [choice])

    def last(self, counts: Json) -> Json:
        """The chunk with the usage, which has no choices."""
        return self._envelope(self.form.chunk, []) | {"usage": counts}

    def _envelope(self, kind: str, choices: list[Json]) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}


class ChatForm:
    """/v1/chat/completions."""

    plain, chunk = "chat.completion", "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self.tells_tokens = logprobs

    def whole(self, index: int, delta: Delta) -> Json:
        """A choice with its message."""
        message = {"role": "assistant", "content": delta.text, "refusal": None}
        return {"index": index, "message": message} | self._rest(delta)

    def opening(self, index: int) -> Json:
        """The role comes first."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, delta: Delta) -> Json:
        """A choice with what was added to its message."""
        return {"index": index, "delta": {"content": delta.text} if delta.text else {}} | self._rest(delta)

    def _rest(self, delta: Delta) -> Json:
        logprobs = {"content": [self._token(token) for token in delta.tokens]} if self.tells_tokens else None
        return {"logprobs": logprobs} | _end(delta)

    def _token(self, token: Sampled) -> Json:
        assert token.logprob is not None
        others = [self._entry(other.token_id, other.logprob) for other in token.top_logprobs]
        return self._entry(token.token_id, token.logprob.logprob) | {"top_logprobs": others}

    def _entry(self, token_id: int, logprob: float) -> Json:
        spelled = self._tokenizer.token_bytes(token_id)
        return {"token": spelled.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(spelled)}


class CompletionForm:
    """/v1/completions. Remembers how far each choice's tokens have come, for `text_offset`."""

    plain = chunk = "text_completion"

    def __init__(self, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._tokenizer = tokenizer
        self.tells_tokens = logprobs
        self._offsets: dict[int, int] = defaultdict(int)

    def opening(self, index: int) -> None:
        """Nothing comes before the text."""

    def whole(self, index: int, delta: Delta) -> Json:
        """A choice with its text."""
        logprobs = self._tokens(index, delta.tokens) if self.tells_tokens else None
        return {"index": index, "text": delta.text, "logprobs": logprobs} | _end(delta)

    piece = whole

    def _tokens(self, index: int, tokens: Sequence[Sampled]) -> Json:
        texts = [self._text(token.token_id) for token in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob and token.logprob.logprob for token in tokens],
            "top_logprobs": [
                {self._text(other.token_id): other.logprob for other in token.top_logprobs} for token in tokens
            ],
            "text_offset": offsets,
        }

    def _text(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")


def _end(delta: Delta) -> Json:
    """Why a choice ended, with the stop string or id that did it as an extra, which clients may ignore."""
    reason = None if delta.finish_reason is None else delta.finish_reason.value
    return {"finish_reason": reason} | ({} if delta.stop_reason is None else {"stop_reason": delta.stop_reason})
