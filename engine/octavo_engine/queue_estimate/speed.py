"""What steps take: for their decodes, and for each prompt token in them. Pure.

How much longer a step takes for each decode in it is taken from the roofline, and what it takes beside that is learned:
so what was seen of a few tells of many. A step of few prompt tokens takes hardly longer than one
without, and says next to nothing about what they cost: it counts by the square of their number, which is least squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from octavo_engine.roofline import Machine, ModelCost

STEPS_KEPT = 20  # of those without prompt tokens
TOKENS_KEPT = 16_384  # of prompts
TELLING_TOKENS = 512
"""A step of so many prompt tokens weighs as much as what was expected before the first."""
CONTEXT, MANY = 512, 64  # tokens, and sequences, at which the roofline is looked at
LIKELY_SHARE = 0.5  # of what the roofline allows
LARGEST_SURPRISE = 3.0
"""A step counts as so many times what was expected at most: the first after a start takes far more."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Seconds that a step should take, whatever is in it; that each decode should add, and each prompt token."""

    step: float
    decode: float
    token: float

    @classmethod
    def of(cls, cost: ModelCost, machine: Machine) -> Expected:
        """By the roofline, of which steps are likely to reach a half."""
        one, many = (cost.decode([CONTEXT] * number).least_seconds(machine) for number in (1, MANY))
        prompt = cost.step([(0, TELLING_TOKENS)], samples=1).flops / machine.flops
        decode = (many - one) / (MANY - 1)
        return cls(
            (one - decode) / LIKELY_SHARE, decode / LIKELY_SHARE, prompt / TELLING_TOKENS / LIKELY_SHARE
        )  # fmt: skip


class Speed:
    """Told of each step; says what so many will take."""

    def __init__(self) -> None:
        self._expected: Expected | None = None
        self._beside: float | None = None  # seconds beside what was expected, of steps without prompt tokens
        self._products = self._squares = 0.0  # of a step's prompt tokens with the seconds that they added; with itself

    def expect(self, expected: Expected) -> None:
        """What a machine like this one should take; all that is known before the first step."""
        self._expected, self._beside = expected, 0.0

    @property
    def known(self) -> bool:
        """Whether a step with prompt tokens was seen, or is known of from elsewhere."""
        return self._squares > 0 or self._expected is not None

    def observe(self, seconds: float, *, decodes: int, tokens: int) -> None:
        """A step of so many decodes and so many prompt tokens took so long."""
        if seconds <= 0:
            return
        if not tokens:
            self._learn(seconds, decodes)
            return
        keep = math.exp(-tokens / TOKENS_KEPT)
        self._products = self._products * keep + tokens * (seconds - self._without_prompts(decodes))
        self._squares = self._squares * keep + tokens * tokens

    def seconds(self, steps: float, *, decodes: float, tokens: float) -> float:
        """How long so many steps take, each with so many decodes, that compute so many prompt tokens all together."""
        return steps * self._without_prompts(decodes) + tokens * self._token

    @property
    def _token(self) -> float:
        """Seconds that a prompt token adds."""
        products, squares = self._products, self._squares
        if self._expected is not None:
            squares += TELLING_TOKENS * TELLING_TOKENS
            products += TELLING_TOKENS * TELLING_TOKENS * self._expected.token
        return max(0.0, products / squares) if squares else 0.0

    def _without_prompts(self, decodes: float) -> float:
        return max(0.0, self._should_take(decodes) + (self._beside or 0.0))

    def _should_take(self, decodes: float) -> float:
        return self._expected.step + decodes * self._expected.decode if self._expected is not None else 0.0

    def _learn(self, seconds: float, decodes: int) -> None:
        if self._beside is None:
            self._beside = seconds
        before = self._without_prompts(decodes)
        seen = min(before * LARGEST_SURPRISE, max(before / LARGEST_SURPRISE, seconds))
        self._beside += (seen - before) / STEPS_KEPT
