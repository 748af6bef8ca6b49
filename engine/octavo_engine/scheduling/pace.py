"""How much of a prompt a step may compute beside decodes, so that a long prompt never makes their readers wait, and
what a guess costs them.

Each step that computes prompt tokens is longer for everyone in it. `Pace` says by how much it may be: a value that the
scheduler is given. `Pacer` learns it from how long steps took. Neither has a clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from octavo_engine.batch import Batch

MIN_PROMPT_TOKENS = 4
"""A prompt makes some progress in every step, however slow the machine."""
MIN_TELLING_TOKENS = 64
"""A step of fewer prompt tokens alone takes nearly as long, and says little about what one of them costs."""
LEARNING_RATE = 0.2
STALE_STEPS = 1024
"""So many steps with prompts after decodes were last seen alone, what is known of them is as uncertain as the rest."""
MARGIN = 1.5
"""What a guess costs and how likely it is are both estimates, and where nobody waits for the place of who is ready
sooner, it saves less. At 1.0, chats of eight streams on two slow cores came out a twentieth slower than with none."""
MANY = 1 << 20
CHEAPEST_DRAFT = 0.1
"""A token of a draft costs at least so much of one of a prompt."""
LARGEST_SURPRISE = 2.0
"""A step that took more than this many times what was expected, or less than its inverse, counts as if just that."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What prompts may take of a step.

    `equal_tokens`: prompt tokens that take as long as the running requests' decodes without them. `slowdown`: how many
    times as long as these decodes a step may be while one prompt is computed, at least 1. `equal_drafted`: the same for
    tokens of drafts, which are cheaper where a step reads more than it computes. `most_tokens`: prompt tokens of a
    step that keeps somebody waiting, however many prompts there are.
    """

    equal_tokens: float
    slowdown: float
    equal_drafted: float = math.inf
    most_tokens: int = MANY

    def drafted_tokens(self, prompt_tokens: int) -> int:
        """Tokens of drafts for a step that computes so many of prompts: what these leave of its slowdown."""
        left = self.equal_tokens * (self.slowdown - 1) - prompt_tokens
        return int(min(left / self.equal_tokens * self.equal_drafted, MANY)) if left > 0 else 0

    def price(self, decodes: int) -> float:
        """What share of guesses must come true beside so many decodes: the time that one takes of all, over that of the
        token which it saves, and half as much again."""
        return MARGIN * decodes / self.equal_drafted

    def prompt_tokens(self, prompts: int) -> int:
        """Prompt tokens for a step in which `prompts` requests are to be computed, or wait for nothing but that.

        Where many come at once, the share that one may have would keep the last of them waiting for long, with few
        decodes in each step meanwhile. Each has its share, and each wants it for all those before it, too: so what
        they have together grows with the square of their number.
        """
        tokens = self.equal_tokens * (self.slowdown - 1) * prompts**2
        return max(MIN_PROMPT_TOKENS, int(min(tokens, self.most_tokens)))


class Least(NamedTuple):
    """Seconds that a machine takes at least: for a step's decodes, and for a token of a prompt."""

    decodes: float
    token: float


class Pacer:
    """Learns from steps what decodes and prompt tokens cost here, and follows as contexts grow and batches change.

    A step is expected to take the time of its decodes and that of its prompt tokens. What it took beside that corrects
    each of both estimates by its share in the sum; but that of decodes the less, the more lately they were seen alone.

    `slowdown`: see Pace. `longest`: seconds that the prompts of a step may take. `least`: stands in for what was not
    seen yet.
    """

    def __init__(self, slowdown: float, *, longest: float = math.inf, least: Least | None = None) -> None:
        self._slowdown, self._longest, self._least = slowdown, longest, least
        self._decode_seconds: float | None = None  # of one step's decodes together
        self._token_seconds: float | None = None  # of one prompt token
        self._drafted_seconds: float | None = None  # of one token of a draft
        self._mixed_steps = 0  # since decodes were last seen alone

    @property
    def pace(self) -> Pace | None:
        """The present pace; None, which is no limit, where a decode or a prompt was not seen yet and nothing stands in
        for it."""
        decodes = self._decode_seconds or (self._least and self._least.decodes)
        token = self._token_seconds or (self._least and self._least.token)
        if not decodes or not token:
            return None
        drafted = self._drafted_seconds or token
        most = max(MIN_TELLING_TOKENS, int(min(self._longest / token, MANY)))
        return Pace(decodes / token, self._slowdown, decodes / drafted, most)

    def observe(self, batch: Batch, seconds: float) -> None:
        """Learn from a step that took `seconds`."""
        tokens = batch.num_tokens - batch.num_continuing - batch.num_drafted
        if seconds <= 0:
            return
        if batch.num_drafted:
            if not tokens:
                self._observe_drafted(batch.num_drafted, seconds)
        elif not tokens:
            self._decode_seconds = _corrected(self._decode_seconds or seconds, seconds, 1.0)
            self._mixed_steps = 0
        elif not batch.num_singles and tokens >= MIN_TELLING_TOKENS:
            self._token_seconds = _corrected(self._token_seconds or seconds / tokens, seconds / tokens, 1.0)
        elif batch.num_singles and self._decode_seconds is not None and self._token_seconds is not None:
            self._observe_mixed(self._decode_seconds, self._token_seconds, tokens, seconds)

    def _observe_drafted(self, tokens: int, seconds: float) -> None:
        """Decodes with drafts, which there are only when the other two are known. A token of one costs what one of a
        prompt does at most, and something at least: what costs nothing would never be found to."""
        if self._decode_seconds is None or self._token_seconds is None:
            return
        drafted_seconds = self._drafted_seconds or self._token_seconds
        expected = self._decode_seconds + drafted_seconds * tokens
        share = self._decode_seconds / expected
        seen = max(0.0, seconds - self._decode_seconds) / tokens
        self._decode_seconds = _corrected(self._decode_seconds, self._decode_seconds * seconds / expected, share)
        least, most = self._token_seconds * CHEAPEST_DRAFT, self._token_seconds
        self._drafted_seconds = min(most, max(least, _corrected(drafted_seconds, seen, 1 - share)))

    def _observe_mixed(self, decode_seconds: float, token_seconds: float, tokens: int, seconds: float) -> None:
        self._mixed_steps += 1
        expected = decode_seconds + token_seconds * tokens
        share, doubt = decode_seconds / expected, min(1.0, self._mixed_steps / STALE_STEPS)
        self._decode_seconds = _corrected(decode_seconds, decode_seconds * seconds / expected, share * doubt)
        self._token_seconds = _corrected(token_seconds, max(0.0, seconds - decode_seconds) / tokens, 1 - share)


def _corrected(estimate: float, seen: float, share: float) -> float:
    """Move an estimate towards what was seen, as far as it had a share in that."""
    surprise = min(LARGEST_SURPRISE, max(1 / LARGEST_SURPRISE, seen / estimate))
    return estimate * (1 + LEARNING_RATE * share * (surprise - 1))
