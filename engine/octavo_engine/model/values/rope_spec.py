"""How positions become angles, as values: the checkpoint readers make them, `compute.rope` computes with them.

A scaling lets a model see more positions than those it was first trained on, by turning some or all pairs more slowly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Far beyond any real ones: with others, numbers would overflow on the way to the angles.
MAX_FACTOR = 1 << 16
MAX_POSITIONS = 1 << 24
TURNS = (1e-3, 1e6)
MAX_ATTENTION = 100.0


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by `factor` (https://arxiv.org/abs/2306.15595)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretch of the low frequencies (https://arxiv.org/abs/2407.21783, section 3.4.2)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """Each frequency divided by its own factor: what GGUF stores in place of Llama3Scaling."""

    factors: tuple[float, ...]  # head_dim / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (https://arxiv.org/abs/2309.00071): pairs that turn often stay, those that turn seldom are stretched."""

    factor: float
    original_max_positions: int
    beta_fast: float = 32.0  # turns within the original positions: pairs with more of them stay as they are
    beta_slow: float = 1.0  # those with fewer are stretched by the whole factor
    attention_factor: float  # what cosines and sines are multiplied with, so scores with its square
    truncate: bool = True  # the ramp between the two begins and ends at whole pairs

    def ramp(self, theta: float, head_dim: int) -> tuple[float, float]:
        """Numbers of the pairs between which staying fades into stretching."""

        def pair(turns: float) -> float:
            return head_dim * math.log(self.original_max_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        return low, high + 0.001 if high == low else high


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    """A larger theta for longer sequences ("dynamic NTK"; its growth of theta is in YaRN's paper, section 3.4).

    transformers takes the longest sequence that it has computed since it last saw a short one. Keys that a cache holds
    have then been turned by other angles than the queries that meet them, and what a request gets depends on those
    before it. Here it is the longest sequence that is *served*, one for all: a cached key is right for every query. Up
    to `original_max_positions` both leave theta alone, and both turn a sequence of just the served length alike.
    """

    factor: float
    original_max_positions: int
    length: int | None = None  # the longest sequence served; None: no longer than the original positions

    def stretched(self, theta: float, head_dim: int) -> float:
        """Theta for that length."""
        times = max(self.length or 0, self.original_max_positions) / self.original_max_positions
        return theta * float((self.factor * times - (self.factor - 1)) ** (head_dim / (head_dim - 2)))


Scaling = LinearScaling | Llama3Scaling | FactorScaling | YarnScaling | DynamicScaling


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions: `theta ** (-2 i / head_dim)` radians a position for the pair i, then scaled."""

    theta: float
    scaling: Scaling | None = None

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied with."""
        return self.scaling.attention_factor if isinstance(self.scaling, YarnScaling) else 1.0

    def positions(self, stated: int) -> int:
        """How many positions a model has whose config states `max_position_embeddings`.

        Linear scaling is written beside the number before it, Llama 3's beside the number after it, YaRN's beside
        either. What dynamic scaling could add is asked for by name: see `ModelSpec.longest`.
        """
        match self.scaling:
            case LinearScaling(factor):
                return int(factor * stated)
            case YarnScaling(factor=factor, original_max_positions=original):
                return max(stated, int(factor * original))
        return stated


def yarn_attention_factor(factor: float, mscale: float = 0.0, mscale_all_dim: float = 0.0) -> float:
    """What YaRN multiplies with unless the config names a number: from `factor`, or from both of the other two."""

    def grown(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    return grown(mscale) / grown(mscale_all_dim) if mscale and mscale_all_dim else grown(1.0)
