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
from collections.abc import Sequence

from octavo_engine.request import Request
from octavo_engine.scheduling.lookup import Lookup

LEAST_PRICE = 1e-9
SUREST = 0.995  # no guess is surer: what comes next may be the end of what repeats


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
        lookups = [self._known(request) for request in requests]
        pairs = zip(lookups, requests, strict=True)
        counts = [min(worth(lookup.trust, price), self._room(request)) for lookup, request in pairs]
        if sum(counts) > rows:
            counts = _likeliest([lookup.trust for lookup in lookups], counts, rows)
        return [lookup.guess(count) for lookup, count in zip(lookups, counts, strict=True)]

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


def _likeliest(trusts: Sequence[float], counts: Sequence[int], rows: int) -> list[int]:
    """Of so many guesses of each, the `rows` that are likeliest, counted."""
    chances = [
        (min(trust, SUREST) ** ahead, -index)
        for index, (trust, count) in enumerate(zip(trusts, counts, strict=True))
        for ahead in range(1, count + 1)
    ]
    chosen = Counter(-index for _, index in heapq.nlargest(rows, chances))
    return [chosen[index] for index in range(len(counts))]


def worth(trust: float, price: float) -> int:
    """How many guesses in a row are likelier than their price, where each comes true with that probability, as all
    before it must have."""
    trust = min(trust, SUREST)
    if price >= trust:
        return 0
    return math.ceil(math.log(max(price, LEAST_PRICE)) / math.log(trust)) - 1
