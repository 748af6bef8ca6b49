"""The layers of a decoder as kernels see them: their weights, what they share, and the one function that runs them all.

Two ways to run them: `compute.layers` calls the kernels one by one, on any device; `cpu.layers` calls them from C++.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from octavo_engine.kernels.attention import UNSCALED, CacheScales, StepLayout
from octavo_engine.kernels.linear import GatedProjection, Projection
from octavo_engine.kernels.pointwise import HeadNorms

LayerCache = tuple[Tensor, Tensor]
"""A layer's keys and values, each `[blocks, block_size, kv_heads, head_dim]`."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Query, key and value are one projection, since they read the same input."""

    input_norm: Tensor  # [hidden]
    qkv: Projection
    head_norms: HeadNorms | None
    output: Projection
    mlp_norm: Tensor  # [hidden]
    gate_up: GatedProjection
    down: Projection
    cache_scales: CacheScales = UNSCALED  # where the cache has 8 bits

    @property
    def products(self) -> tuple[Projection | GatedProjection, ...]:
        """All of them."""
        return (self.qkv, self.output, self.gate_up, self.down)


@dataclass(frozen=True, slots=True)
class LayersShape:
    """What the layers of one model have in common."""

    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    eps: float  # of every norm
    windows: tuple[int | None, ...]  # sliding window of each layer, in tokens


@dataclass(frozen=True, slots=True)
class Step:
    """What every layer of one step shares."""

    layout: StepLayout
    cos: Tensor  # [tokens, 1, head_dim]
    sin: Tensor  # the same; negative in a head's first half
    kept: Tensor | None = None  # int64 [kept], rising: the rows that anybody looks at after the layers; None: all


RunLayers = Callable[[Tensor, Step, Sequence[LayerCache]], Tensor]
"""`(hidden [tokens, hidden], step, caches) -> [kept or tokens, hidden]`; `hidden` may be overwritten. Stores keys and
values of all tokens. Of the last layer nothing else is computed but for the rows that are kept: of a prompt, one."""
