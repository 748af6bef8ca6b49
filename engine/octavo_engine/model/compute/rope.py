"""Rotary position embedding: each pair (i, i + dim/2) of a head turns by an angle proportional to the token's position.

Idea: Su et al., https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo_engine.model.values.rope_spec import (
    DynamicScaling,
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    RopeSpec,
    YarnScaling,
)


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Radians a position for each pair, float32 `[head_dim / 2]`, scaled as `rope` says.

    Each step rounds as transformers' does: at position 100,000 the last bit of a frequency shows in the angle.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    match rope.scaling:
        case DynamicScaling() as dynamic:
            return 1.0 / dynamic.stretched(rope.theta, head_dim) ** exponents
        case YarnScaling() as yarn:
            return _yarn(rope.theta**exponents, yarn, *yarn.ramp(rope.theta, head_dim))
    plain = 1.0 / rope.theta**exponents
    match rope.scaling:
        case LinearScaling(factor):
            return plain / factor
        case FactorScaling(factors):
            return plain / torch.tensor(factors)
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)
    return plain


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Long wavelengths are stretched by the factor, short ones kept, those between interpolated."""
    turns = scaling.original_max_positions * plain / (2 * math.pi)  # in the original window
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return (1 - keep) * plain / scaling.factor + keep * plain


def _yarn(periods: Tensor, scaling: YarnScaling, low: float, high: float) -> Tensor:
    """periods: positions a radian of each pair, unscaled. Pairs before `low` are kept, those after `high` stretched."""
    pairs = torch.arange(len(periods), dtype=torch.float32)
    keep = 1 - ((pairs - low) / (high - low)).clamp(0.0, 1.0)
    return 1.0 / (scaling.factor * periods) * (1 - keep) + 1.0 / periods * keep


def angles(
    positions: Tensor, frequencies: Tensor, dtype: torch.dtype, attention_factor: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines, each `[tokens, 1, head_dim]`, of positions `[tokens]`: once a step, for all layers.

    The sines of a head's first half are negative, which makes the rotation `x * cos + roll(x, dim / 2) * sin`. Both are
    multiplied by `attention_factor`: queries and keys each carry it, so scores carry its square.
    """
    turns = positions[:, None, None].float() * frequencies
    cos, sin = turns.cos() * attention_factor, turns.sin() * attention_factor
    return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)
