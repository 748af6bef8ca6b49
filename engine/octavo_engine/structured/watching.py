"""A free answer that is held to a form wherever one begins: it is watched for openings.

Where no form has begun all tokens may come but those that would begin one and go on in a way that it does not allow; a
token may do both, as `>{` does after `<tool_call`. So an answer without a form is what it would be if nobody watched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from octavo_engine.structured.branching import copied_with
from octavo_engine.structured.matching import Matching
from octavo_engine.structured.opening import Opening, Openings
from octavo_engine.structured.thought import everything_but, with_token
from octavo_engine.structured.vocabulary import Tokens

BEYOND = 8192  # tokens: a model may have more than its tokenizer, and those are free as well


@dataclass(frozen=True, slots=True)
class Watch:
    """One opening, and for each of its states the tokens that may come next, a bit each."""

    opening: Opening
    allowed: Mapping[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Watches:
    """What answers are watched for. Shared by them; safe from any thread.

    first: at the beginning. next: where a form has ended; None: then the answer ends. text: the bytes that a token
    shows. tokens: that show such bytes. ends, free: the tokens that end an answer, and all there are, a bit each.
    """

    first: Watch
    next: Watch | None
    text: Callable[[int], bytes]
    tokens: Callable[[bytes], list[int]]
    ends: bytes
    free: bytes


class Watcher:
    """Makes what the answers of one model are watched for."""

    def __init__(self, tokenizer: Tokens, end_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        size = tokenizer.vocab_size
        self._ends = reduce(with_token, end_ids, bytes(-(-size // 8)))
        self._free = everything_but(size + BEYOND, ())
        self._completing: dict[tuple[tuple[bytes, ...], bool], dict[int, bytes]] = {}

    def watches(
        self, openings: Openings, starts: Callable[[bytes], bool], tokens: Callable[[bytes], list[int]]
    ) -> Watches:
        """See Watches. starts: whether some text of the form begins with such bytes. tokens: that show such bytes."""
        first = self._watch(openings.first, starts, special=openings.special)
        following = first if openings.next == openings.first else None
        if following is None and openings.next is not None:
            following = self._watch(openings.next, starts, special=openings.special)
        return Watches(first, following, self._shown(special=openings.special), tokens, self._ends, self._free)

    def _watch(self, opening: Opening, starts: Callable[[bytes], bool], *, special: bool) -> Watch:
        """States in which the same tokens may come, as most are in which any may, share the mask."""
        shown = self._completing_tokens(opening, special=special)
        masks: dict[tuple[int, ...], bytes] = {(): self._free}
        allowed = {}
        for state in opening.states:
            wrong = tuple(_wrong(opening, state, shown, starts))
            if wrong not in masks:
                masks[wrong] = everything_but(self._tokenizer.vocab_size + BEYOND, wrong)
            allowed[state] = masks[wrong]
        return Watch(opening, allowed)

    def _completing_tokens(self, opening: Opening, *, special: bool) -> dict[int, bytes]:
        """The tokens that may complete an opening, with what they show: looked up once, among all there are."""
        lasts, tokenizer = opening.lasts, self._tokenizer
        if (lasts, special) not in self._completing:
            silent = frozenset[int]() if special else tokenizer.special_ids
            spelled = enumerate(map(tokenizer.token_bytes, range(tokenizer.vocab_size)))
            found = {token: text for token, text in spelled for last in lasts if last in text}
            self._completing[lasts, special] = {t: text for t, text in found.items() if t not in silent}
        return self._completing[lasts, special]

    def _shown(self, *, special: bool) -> Callable[[int], bytes]:
        """What a token shows in a text, where control tokens show their names (`special`), or nothing."""
        tokenizer = self._tokenizer

        def text(token: int) -> bytes:
            return tokenizer.token_bytes(token) if special or token not in tokenizer.special_ids else b""

        return text


def _wrong(
    opening: Opening, state: bytes, shown: Mapping[int, bytes], starts: Callable[[bytes], bool]
) -> Iterator[int]:
    """The tokens that complete the opening, and go on as no text of the form begins."""
    for token, text in shown.items():
        rest = opening.push(state, text).rest
        if rest and not starts(rest):
            yield token


class Watched:
    """The Constraint of one answer. begin: makes what keeps one form, from its beginning."""

    def __init__(self, watches: Watches, begin: Callable[[], Matching]) -> None:
        self._watches = watches
        self._begin = begin
        self._watch: Watch | None = watches.first
        self._state = b""
        self._form: Matching | None = None
        self._said: list[int] = []  # tokens of the form
        self._bits = b""  # what the form allows after them
        self._looked_at = 0  # tokens of the answer

    def allowed(self, tokens: Sequence[int], first: int) -> bytes:
        """See Constraint."""
        self._look(tokens, first)
        if self._form is not None:
            return self._bits
        return self._watches.ends if self._watch is None else self._watch.allowed[self._state]

    def forced(self, tokens: Sequence[int], first: int) -> Sequence[int]:
        """See Constraint. Only a form leaves no choice, and not before its answer's tokens have brought it up."""
        self._look(tokens, first)
        return () if self._form is None else self._form.forced(self._said, 0)

    def branch(self) -> Watched:
        """See Constraint."""
        form = None if self._form is None else self._form.branch()
        return copied_with(self, _form=form, _said=self._said.copy())

    def _look(self, tokens: Sequence[int], first: int) -> None:
        for at in range(first + self._looked_at, len(tokens)):
            self._take(tokens[at])
        self._looked_at = len(tokens) - first

    def _take(self, token: int) -> None:
        if self._form is not None:
            self._go_on(self._form, [token])
        elif self._watch is not None:
            self._state, rest = self._watch.opening.push(self._state, self._watches.text(token))
            if rest is not None:
                self._form, self._said = self._begin(), []
                self._go_on(self._form, self._watches.tokens(rest))

    def _go_on(self, form: Matching, tokens: Sequence[int]) -> None:
        self._said.extend(tokens)
        self._bits = form.allowed(self._said, 0)
        if form.complete:
            self._form, self._watch, self._state = None, self._watches.next, b""
