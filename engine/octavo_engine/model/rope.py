"""Rotary position embedding: each pair (i, i + dim/2) of a head turns by an angle proportional to the token's position.

Idea: Su et al., https://arxiv.org/abs/2104.09864.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from octavo_engine.model.architecture import FactorScaling, LinearScaling, Llama3Scaling, RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Radians a position for each pair, float32 `[head_dim / 2]`, scaled as `rope` says."""
    plain = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    match rope.scaling:
        case None:
            return plain
        case LinearScaling(factor):
            return plain / factor
        case FactorScaling(factors):
            return plain / torch.tensor(factors)
        case Llama3Scaling() as scaling:
            return _llama3(plain, scaling)


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Long wavelengths are stretched by the factor, short ones kept, those between interpolated."""
    turns = scaling.original_max_positions * plain / (2 * math.pi)  # in the original window
    keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = keep.clamp(0.0, 1.0)
    return (1 - keep) * plain / scaling.factor + keep * plain


def angles(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and signed sines, each `[tokens, 1, head_dim]`, of positions `[tokens]`: once a step, for all layers.

    The sines of a head's first half are negative, which makes the rotation `x * cos + roll(x, dim / 2) * sin`.
    """
    turns = positions[:, None, None].float() * frequencies
    cos, sin = turns.cos(), turns.sin()
    return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)
