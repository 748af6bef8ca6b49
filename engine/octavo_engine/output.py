"""From sampled tokens to what a client sees: text that is safe to send, and the decision to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from octavo_engine.request import FinishReason, Request, Sampled


class Delta(NamedTuple):
    """What one step added to a request's answer. `tokens` are those that belong to the text: a token that ends it is
    not one.

    `text` lags behind `tokens` while UTF-8 is incomplete or a stop string may be beginning.
    """

    text: str
    tokens: tuple[Sampled, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or stop id that matched


def merge(deltas: Sequence[Delta]) -> Delta:
    """Deltas of one request that follow each other, one at least, as one."""
    if len(deltas) == 1:
        return deltas[0]
    tokens = tuple(token for delta in deltas for token in delta.tokens)
    text = "".join(delta.text for delta in deltas)
    return Delta(text, tokens, deltas[-1].finish_reason, deltas[-1].stop_reason)


class IncrementalText(Protocol):
    """The detokenizer of one request."""

    @property
    def stopped(self) -> str | None:
        """The stop string that matched, if any."""

    def push(self, token_id: int) -> str:
        """Take a token; return the text that is safe to send."""

    def finish(self) -> str:
        """Return what was held back."""


class Answer:
    """The growing answer to one request."""

    def __init__(self, request: Request, text: IncrementalText, *, eos_ids: frozenset[int], max_model_len: int) -> None:
        self._request = request
        self._text = text
        params = request.params
        self._stop_ids = frozenset(params.stop_token_ids)
        self._end_ids = self._stop_ids if params.ignore_eos else self._stop_ids | eos_ids
        self.limit = min(request.max_total_tokens, max_model_len)  # tokens at which it ends whatever they are

    def push(self, sampled: Sampled) -> Delta:
        """Take the token just appended to the request and decide whether it was the last."""
        token = sampled.token_id
        if token in self._end_ids and self._may_end:
            reason = token if token in self._stop_ids else None
            return Delta(self._text.finish(), (), FinishReason.STOP, reason)
        text = self._text.push(token)
        if (stop := self._text.stopped) is not None:
            return Delta(text, (sampled,), FinishReason.STOP, stop)
        if len(self._request.tokens) >= self.limit:
            return Delta(text + self._text.finish(), (sampled,), FinishReason.LENGTH)
        return Delta(text, (sampled,))

    @property
    def _may_end(self) -> bool:
        """Where an answer has a form, an end before the minimum length is drawn only if nothing else can come."""
        request = self._request
        return request.num_output > request.params.min_tokens or request.constraint is not None

    def end(self, reason: FinishReason) -> Delta:
        """The last words of a request that is ended from outside."""
        return Delta(self._text.finish(), (), reason)
