"""How long answers will be, from how seldom tokens were the last of one. Pure.

A mean of the lengths of answers that have ended would speak of the short ones, as the long ones still run; and a limit
(`max_tokens`) may be meant, as in a load test, or be far away from where answers end. So what counts is how many of the
tokens generated lately ended their answer by themselves, where those of the answers that still run count as well: an
answer then ends at each token with this chance, and at its limit in any case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MEMORY = 0.95  # what an answer leaves of the weight of those before: about the last twenty count
FIRST_GUESS = 384  # tokens of an answer without a limit
GUESSES = 12  # answers that have to end before they weigh as much as that


class Answers:
    """Told of answers that have ended; says how many tokens more one is likely to have."""

    def __init__(self) -> None:
        self._tokens = self._stops = 0.0

    def ended(self, tokens: int, *, stopped: bool) -> None:
        """An answer of so many tokens is over; `stopped`: by itself, and not at its limit."""
        self._tokens = self._tokens * MEMORY + tokens
        self._stops = self._stops * MEMORY + stopped

    def chance(self, running: Sequence[int]) -> float:
        """That a token is the last of its answer; `running`: how many tokens those have that run."""
        seen = self._tokens + sum(running) + GUESSES * FIRST_GUESS
        return min(1.0, (self._stops + GUESSES) / seen)


def expected(chance: float, most: float) -> float:
    """Tokens that an answer is likely to get yet, where it may get `most`."""
    return (1.0 - math.pow(1.0 - chance, max(0.0, most))) / chance
