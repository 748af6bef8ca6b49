"""One answer on its way through a grammar: which tokens may come next.

What has been matched is a function of the answer's tokens alone. It is brought up to them when it is asked, so that a
request that lost its blocks and computes again, or waits for long, needs nothing undone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from llguidance import LLMatcher

from octavo_engine.errors import OctavoError

# How a matcher is that can go on, or has come to its end. All others have run into a limit.
SOUND = frozenset({"NotStopped", "NoExtension", "NoExtensionBias", "EndOfSentence"})
PANIC = "PanicException"  # the library's own; no module has it, and it is no Exception


class FormLost(OctavoError):
    """The answer cannot be kept to its form any more: a limit was met, or it has a token that was not allowed."""


class Matching:
    """The Constraint of one request.

    matcher: at the beginning of the grammar, and nobody else's. end_ids: all that end an answer; the matcher knows the
    first of them alone, and where it allows that, any other does as well.
    """

    def __init__(self, matcher: LLMatcher, end_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._end, *self._other_ends = end_ids
        self._taken = 0  # tokens of the answer that the matcher has

    def allowed(self, tokens: Sequence[int], first: int) -> bytes:
        """The tokens that may follow `tokens[first:]`, the answer so far: bit `i % 8` of byte `i // 8` is token `i`'s.

        When the form is complete these are the end tokens alone. Raises FormLost.
        """
        with panics_as_errors():
            if new := list(tokens[first + self._taken :]):
                self._matcher.consume_tokens(new)
                self._taken += len(new)
                self._check()
            bits = self._matcher.compute_bitmask()
            self._check()
        return self._with_other_ends(bits)

    def _check(self) -> None:
        """A matcher raises nothing: once it has met a limit, it allows the end, whatever the answer lacks."""
        if self._matcher.is_error():
            raise FormLost(f"the answer's form: {one_line(self._matcher.get_error())}")
        if (reason := self._matcher.stop_reason()) not in SOUND:
            raise FormLost(f"the answer's form: {reason}")

    def _with_other_ends(self, bits: bytes) -> bytes:
        if not self._other_ends or not bits[self._end // 8] >> self._end % 8 & 1:
            return bits
        ended = bytearray(bits).ljust(max(self._other_ends) // 8 + 1, b"\0")
        for index in self._other_ends:
            ended[index // 8] |= 1 << index % 8
        return bytes(ended)


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """A fault inside the grammar engine is FormLost, an ordinary error: it ends one request and no thread."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != PANIC:
            raise
        raise FormLost("the grammar engine has failed at this form") from error


def one_line(text: str, limit: int = 300) -> str:
    """A complaint of the grammar engine, without its line breaks and drawings."""
    joined = " ".join(text.split())
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"
