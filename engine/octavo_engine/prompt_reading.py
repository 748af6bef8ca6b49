"""What steps tell of a prompt beside the token after it: how likely its own tokens were, or its hidden states.

A prompt is computed in pieces, and so this comes in pieces, which are joined. It is kept as small arrays: a tuple for
each of the twenty likeliest of each of some thousand tokens would be ten times as large. Knows no tensors.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self


class PromptReading(Protocol):
    """What has been read of a prompt so far."""

    @property
    def sound(self) -> bool:
        """False when the model's numbers mean nothing."""

    def join(self, later: Self, /) -> None:
        """Add what was read of the positions after."""


class ScoredToken(NamedTuple):
    """What the model made of one token of a prompt, in its own distribution (before temperature and penalties)."""

    logprob: float  # natural
    rank: int  # 1: no token was likelier
    top: tuple[tuple[int, float], ...]  # ids and log-probabilities of the likeliest, from the first on


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Of a prompt's tokens, from the second on: before the first there is nothing to tell it from."""

    width: int  # of the likeliest, how many a token has
    logprobs: array[float]
    ranks: array[int]
    top: array[float]  # `width` a token
    top_ids: array[int]  # the same

    def __len__(self) -> int:
        return len(self.logprobs)

    def __iter__(self) -> Iterator[ScoredToken]:
        for index, (logprob, rank) in enumerate(zip(self.logprobs, self.ranks, strict=True)):
            row = slice(index * self.width, (index + 1) * self.width)
            yield ScoredToken(logprob, rank, tuple(zip(self.top_ids[row], self.top[row], strict=True)))

    @property
    def sound(self) -> bool:
        """See PromptReading. Minus infinity is a chance, of nothing; what is no number is a fault."""
        return not any(map(math.isnan, self.logprobs))

    def join(self, later: PromptLogprobs, /) -> None:
        """See PromptReading; both have one width."""
        assert self.width == later.width
        self.logprobs.extend(later.logprobs)
        self.ranks.extend(later.ranks)
        self.top.extend(later.top)
        self.top_ids.extend(later.top_ids)


@dataclass(frozen=True, slots=True)
class HiddenSum:
    """The sum of the final hidden states of some positions: their mean, or the only one, but for its length."""

    values: array[float]  # [hidden], 64 bits each

    @property
    def sound(self) -> bool:
        """See PromptReading."""
        return all(map(math.isfinite, self.values))

    def join(self, later: HiddenSum, /) -> None:
        """See PromptReading."""
        for index, value in enumerate(later.values):
            self.values[index] += value

    def direction(self) -> array[float]:
        """The same with the Euclidean length 1, in 32 bits a number: an embedding. Zeros stay zeros."""
        length = math.sqrt(math.fsum(value * value for value in self.values)) or 1.0
        return array("f", (value / length for value in self.values))
