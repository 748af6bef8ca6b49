"""A form that begins where a thought has ended: models that think aloud do so before they answer.

A thought is free. What is said after it has the form, as if the answer began there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_engine.request import Constraint
from octavo_engine.structured.branching import copied_with
from octavo_engine.structured.vocabulary import Tokens


@dataclass(frozen=True, slots=True)
class Thought:
    """What an answer may begin with. `begun`: the prompt ends in it, so that the answer does."""

    opening: int  # the token that a thought begins with
    closing: int
    begun: bool


def thought_between(tokenizer: Tokens, opening: str, closing: str, *, begun: bool) -> Thought | None:
    """The thought between two marks; None where a mark is no token of its own, so that its place cannot be told."""
    first, last = (_token_of(tokenizer, mark) for mark in (opening, closing))
    return None if first is None or last is None else Thought(first, last, begun)


def _token_of(tokenizer: Tokens, mark: str) -> int | None:
    ids = tokenizer.encode(mark, add_special_tokens=False)
    return ids[-1] if ids and tokenizer.token_bytes(ids[-1]) == mark.encode() else None


class AfterThought:
    """The Constraint of an answer that may begin with a thought.

    form: what holds for what comes after it. free: the tokens that a thought may have, a bit each.
    """

    def __init__(self, form: Constraint, thought: Thought, free: bytes) -> None:
        self._form, self._thought, self._free = form, thought, free
        self._thinks = thought.begun
        self._looked_at = 0  # tokens of the answer
        self._start: int | None = None  # of the form, in tokens of the answer

    def allowed(self, tokens: Sequence[int], first: int) -> bytes:
        """See Constraint. A thought has no end token: an answer comes after it."""
        if self._start is None:
            self._look(tokens, first)
        if self._start is not None:
            return self._form.allowed(tokens, first + self._start)
        return self._free if self._thinks else with_token(self._form.allowed(tokens, first), self._thought.opening)

    def forced(self, tokens: Sequence[int], first: int) -> Sequence[int]:
        """See Constraint. A thought is free, and whether there is one as well."""
        if self._start is None:
            self._look(tokens, first)
        return () if self._start is None else self._form.forced(tokens, first + self._start)

    def branch(self) -> AfterThought:
        """See Constraint."""
        return copied_with(self, _form=self._form.branch())

    def _look(self, tokens: Sequence[int], first: int) -> None:
        """See whether the thought has begun, and whether it has ended, in the tokens that have come."""
        length = len(tokens) - first
        if length and not self._thinks:
            self._thinks = tokens[first] == self._thought.opening
            self._start = None if self._thinks else 0
        if self._thinks:
            ends = (at for at in range(self._looked_at, length) if tokens[first + at] == self._thought.closing)
            if (end := next(ends, None)) is not None:
                self._start = end + 1
        self._looked_at = length


def everything_but(vocab_size: int, tokens: Sequence[int]) -> bytes:
    """All tokens of a vocabulary without some, a bit each."""
    bits = bytearray(b"\xff" * (vocab_size // 8) + bytes([(1 << vocab_size % 8) - 1]))
    for token in tokens:
        if token < vocab_size:
            bits[token // 8] &= 0xFF ^ 1 << token % 8
    return bytes(bits)


def with_token(bits: bytes, token: int) -> bytes:
    """And one more."""
    more = bytearray(bits).ljust(token // 8 + 1, b"\0")
    more[token // 8] |= 1 << token % 8
    return bytes(more)
