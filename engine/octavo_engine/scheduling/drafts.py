"""How many tokens a step guesses of each request, beside the one that it computes anyway.

A step that reads all weights for a few rows has room for more of them. A draft is what a request may say next; its
tokens are computed in the same step, each sampled as if those before it were known, and the first that is not what was
guessed ends it. So every token is the one that would have come without drafts, and most steps of an answer that repeats
something give several.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from octavo_engine.request import Request
from octavo_engine.scheduling.lookup import Lookup

LEAST_PRICE = 1e-9
SUREST = 0.995  # no guess is surer: what comes next may be the end of what repeats


class Guess(NamedTuple):
    """What one request may say next. The first `forced` of its tokens are as sure as a guess can be; of the others each
    comes true with the probability `trust`, where all before it have."""

    tokens: tuple[int, ...]
    forced: int
    trust: float

    def chances(self) -> Iterator[float]:
        """Of each token."""
        chance = 1.0
        for place in range(len(self.tokens)):
            chance *= SUREST if place < self.forced else min(self.trust, SUREST)
            yield chance


class Drafter:
    """Keeps a Lookup for each request that decodes.

    `most`: tokens of one draft; `max_model_len`: tokens of a sequence, with which it ends.
    """

    def __init__(self, most: int, max_model_len: int) -> None:
        self._most, self._max_model_len = most, max_model_len
        self._lookups: dict[Request, Lookup] = {}

    def draft(self, requests: Sequence[Request], price: float, rows: int) -> list[tuple[int, ...]]:
        """What to compute after the last known token of each request, `rows` tokens at most all together.

        `price`: the share of guesses that must come true for one to be worth its row. If more than have room are worth
        that, the likeliest are made.
        """
        if price >= SUREST:  # with many requests, nothing is: what they say meanwhile is learned when a guess may be
            return [()] * len(requests)
        guesses = [self._guess(request, price) for request in requests]
        if sum(len(guess.tokens) for guess in guesses) > rows:
            guesses = _likeliest(guesses, rows)
        return [guess.tokens for guess in guesses]

    def _guess(self, request: Request, price: float) -> Guess:
        """What the form of an answer leaves no choice about, and what repeats: after it, if they agree."""
        lookup, room = self._known(request), self._room(request)
        forced = (
            tuple(request.constraint.forced(request.tokens, request.num_prompt)[:room]) if request.constraint else ()
        )
        tokens = lookup.guess(min(len(forced) + worth(lookup.trust, price), room))
        return Guess(tokens if tokens[: len(forced)] == forced else forced, len(forced), lookup.trust)

    def _room(self, request: Request) -> int:
        """Guesses after which there is a token left to say: a step gives one more than it is right about."""
        length = min(request.max_total_tokens, self._max_model_len)
        return max(0, min(self._most, length - request.num_tokens - 1))

    def forget(self, request: Request) -> None:
        """It has ended."""
        self._lookups.pop(request, None)

    def reset(self) -> None:
        """All have."""
        self._lookups.clear()

    def _known(self, request: Request) -> Lookup:
        lookup = self._lookups.get(request)
        if lookup is None:
            lookup = self._lookups[request] = Lookup(request.tokens)
        else:
            lookup.learn(request.tokens[len(lookup) :])
        return lookup


def _likeliest(guesses: Sequence[Guess], rows: int) -> list[Guess]:
    """Of all guesses, the `rows` that are likeliest."""
    chances = [(chance, -index) for index, guess in enumerate(guesses) for chance in guess.chances()]
    chosen = Counter(-index for _, index in heapq.nlargest(rows, chances))
    return [guess._replace(tokens=guess.tokens[: chosen[index]]) for index, guess in enumerate(guesses)]


def worth(trust: float, price: float) -> int:
    """How many guesses in a row are likelier than their price, where each comes true with that probability, as all
    before it must have."""
    trust = min(trust, SUREST)
    if price >= trust:
        return 0
    return math.ceil(math.log(max(price, LEAST_PRICE)) / math.log(trust)) - 1
