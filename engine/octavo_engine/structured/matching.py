"""One answer on its way through a grammar: which tokens may come next.

What has been matched is a function of the answer's tokens alone. It is brought up to them when it is asked, so that a
request that lost its blocks and computes again, or waits for long, needs nothing undone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from llguidance import LLMatcher

from octavo_engine.errors import FormTooComplex, OctavoError
from octavo_engine.structured.branching import copied_with

# How a matcher is that can go on, or has come to its end. All others have run into a limit.
SOUND = frozenset({"NotStopped", "NoExtension", "NoExtensionBias", "EndOfSentence"})
# In the words of the grammar engine, which has one kind of error for all that goes wrong.
LIMITS_MET = re.compile(
    r"too many (expressions|states|items)|\) too big|schema too large|items; max is|fuel", re.IGNORECASE
)
PANIC = "PanicException"  # the library's own; no module has it, and it is no Exception


class FormLost(OctavoError):
    """The answer cannot be kept to its form any more, by a fault of ours: it has a token that was not allowed, say."""


@dataclass(frozen=True, slots=True)
class Blame:
    """What a client is told whose form meets a limit: the field that it is in, what would make it simpler, and what has
    the form."""

    param: str
    remedy: str
    whole: str = "an answer"

    def of(self, met: str, tokens: int = 0) -> FormTooComplex:
        """`met`: the limit, in the grammar engine's words. `tokens`: how far the answer had come."""
        where = f"after {tokens} tokens of {self.whole}" if tokens else f"at the first token of {self.whole}"
        message = f"{self.param}: this form is too complex {where}: {one_line(met)}; {self.remedy}"
        return FormTooComplex(message, param=self.param)


class Matching:
    """The Constraint of one request.

    matcher: at the beginning of the grammar, and nobody else's. end_ids: all that end an answer; the matcher knows the
    first of them alone, and where it allows that, any other does as well. anew: another matcher at the beginning, which
    has nothing in common with this one; None where there is none to be had.
    """

    def __init__(
        self, matcher: LLMatcher, end_ids: Sequence[int], blame: Blame, anew: Callable[[], LLMatcher | None]
    ) -> None:
        self._matcher = matcher
        self._blame = blame
        self._anew = anew
        self._alone = False  # whether the matcher has nothing in common with others
        self._end, *self._other_ends = end_ids
        self._taken = 0  # tokens of the answer that the matcher has

    def allowed(self, tokens: Sequence[int], first: int) -> bytes:
        """The tokens that may follow `tokens[first:]`, the answer so far: bit `i % 8` of byte `i // 8` is token `i`'s.

        When the form is complete these are the end tokens alone. Raises FormTooComplex, and FormLost where the fault is
        ours.

        Copies of a matcher share what they have derived of the form, and with that its limits: those may be used up by
        other answers. So this one goes on with a matcher of its own, which its own tokens must use up.
        """
        try:
            return self._allowed(tokens, first)
        except FormTooComplex:
            if self._alone:
                raise
            with panics_as_errors():
                matcher = self._anew()
            if matcher is None:
                raise
        self._matcher, self._taken, self._alone = matcher, 0, True
        return self._allowed(tokens, first)

    def forced(self, tokens: Sequence[int], first: int) -> Sequence[int]:
        """See Constraint. What goes wrong here is told by `allowed`."""
        if self._alone:
            return ()
        try:
            with panics_as_errors():
                self._take(tokens, first)
                return self._matcher.deep_copy().compute_ff_tokens()
        except OctavoError:
            return ()

    def branch(self) -> Matching:
        """See Constraint. Raises FormLost where it would use up what is left to this answer's own matcher."""
        if self._alone:
            raise FormLost("nothing is guessed of an answer that is near a limit")
        with panics_as_errors():
            return copied_with(self, _matcher=self._matcher.deep_copy(), _anew=lambda: None)

    @property
    def complete(self) -> bool:
        """True when the tokens that it was last asked about are a whole of the form."""
        return self._matcher.is_accepting()

    def _allowed(self, tokens: Sequence[int], first: int) -> bytes:
        with panics_as_errors():
            self._take(tokens, first)
            bits = self._matcher.compute_bitmask()
            self._check()
        return self._with_other_ends(bits)

    def _take(self, tokens: Sequence[int], first: int) -> None:
        if new := list(tokens[first + self._taken :]):
            self._matcher.consume_tokens(new)
            self._taken += len(new)
            self._check()

    def _check(self) -> None:
        if (met := limit_met(self._matcher)) is not None:
            raise self._blame.of(met, self._taken)
        if self._matcher.is_error():
            raise FormLost(f"the answer's form: {one_line(self._matcher.get_error())}")

    def _with_other_ends(self, bits: bytes) -> bytes:
        if not self._other_ends or not bits[self._end // 8] >> self._end % 8 & 1:
            return bits
        ended = bytearray(bits).ljust(max(self._other_ends) // 8 + 1, b"\0")
        for index in self._other_ends:
            ended[index // 8] |= 1 << index % 8
        return bytes(ended)


def limit_met(matcher: LLMatcher) -> str | None:
    """The limit that a matcher has run into; None if none.

    It raises nothing: from then on it allows the end, whatever the answer lacks.
    """
    if matcher.is_error():
        return error if LIMITS_MET.search(error := matcher.get_error()) else None
    return None if (reason := matcher.stop_reason()) in SOUND else reason


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
    """A complaint of the grammar engine, without its line breaks, drawings and what it says of its own options."""
    joined = " ".join(text.partition(" Enable ")[0].replace("<non-verbose/>", "").split())
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"
