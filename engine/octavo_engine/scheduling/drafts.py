"""How many tokens a step guesses of each request, beside the one that it computes anyway.

A step that reads all weights for a few rows has room for more of them. A draft is what a request may say next; its
tokens are computed in the same step, each sampled as if those before it were known, and the first that is not what was
guessed ends it. So every token is the one that would have come without drafts, and most steps of an answer that repeats
something give several.
"""

from __future__ import annotations

import math

from octavo_engine.request import Request
from octavo_engine.scheduling.lookup import Lookup

SUREST = 0.995  # no guess is surer: what comes next may be the end of what repeats


class Drafter:
    """Keeps a Lookup for each request that decodes.

    `most`: tokens of one draft; `max_model_len`: tokens of a sequence, with which it ends.
    """

    def __init__(self, most: int, max_model_len: int) -> None:
        self._most, self._max_model_len = most, max_model_len
        self._lookups: dict[Request, Lookup] = {}

    def draft(self, request: Request, price: float, budget: int) -> tuple[int, ...]:
        """What to compute after the last known token of a request.

        `price`: the share of guesses that must come true for one to be worth its row; `budget`: rows that are left.
        """
        lookup = self._known(request)
        room = min(request.max_total_tokens, self._max_model_len) - request.num_tokens - 1  # a step gives one more
        return lookup.guess(min(worth(lookup.trust, price), self._most, room, budget)) if lookup.trust > price else ()

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


def worth(trust: float, price: float) -> int:
    """How many guesses in a row are worth their price, where each comes true with that probability, as all before it
    must have."""
    trust = min(trust, SUREST)
    if price >= trust:
        return 0
    return int(math.log(max(price, 1e-9)) / math.log(trust))
