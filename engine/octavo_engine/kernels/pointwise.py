"""What surrounds a decoder's products and its attention: RMSNorm, and the heads' way into the cache.

Three sets: torch's operations, which define correct and stand here, and fused ones in C++ (`cpu.pointwise`) and for
CUDA (`triton.pointwise`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from octavo_engine.kernels.attention import UNSCALED, CacheScales
from octavo_engine.kernels.stored import put


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Qwen3: RMSNorm over each head, with one weight for the queries and one for the keys."""

    query: Tensor  # [head_dim]
    key: Tensor
    eps: float


class StoreHeads(Protocol):
    """Norm and turn queries and keys, and store keys and values."""

    def __call__(
        self, heads: Tensor, norms: HeadNorms | None, cache: tuple[Tensor, Tensor], scales: CacheScales = UNSCALED, /
    ) -> Tensor:
        """heads: contiguous `[tokens, query + key + value heads, head_dim]`, may be overwritten; cache: keys and values
        `[blocks, block_size, kv_heads, head_dim]`. Returns the queries `[tokens, query heads, head_dim]`."""


RmsNorm = Callable[[Tensor, Tensor, float], Tensor]
"""`(x [rows, width], weight [width], eps) -> x / rms(x) * weight` (https://arxiv.org/abs/1910.07467)."""


AddRmsNorm = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""`(residual [rows, width], x, weight [width], eps)`: adds x to the residual, in place -> the norm of the sum."""


@dataclass(frozen=True, slots=True)
class PointwiseKernels:
    """One set.

    `prepare_store(cos, sin [tokens, 1, head_dim], slots int64 [tokens])` binds, once a step, what its layers share.
    """

    name: str
    rms_norm: RmsNorm
    prepare_store: Callable[[Tensor, Tensor, Tensor], StoreHeads]
    add_rms_norm: AddRmsNorm | None = None  # None: adding to the residual is left to the products


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The plain norm."""
    return F.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The plain sum, which is rounded, and its norm."""
    return rms_norm(residual.add_(x), weight, eps)


def prepare_store(cos: Tensor, sin: Tensor, slots: Tensor) -> StoreHeads:
    """The plain way: rotate queries and keys together, then two indexed copies."""

    def store_heads(
        heads: Tensor, norms: HeadNorms | None, cache: tuple[Tensor, Tensor], scales: CacheScales = UNSCALED
    ) -> Tensor:
        kv_heads = cache[0].shape[2]
        rotated, values = heads[:, :-kv_heads], heads[:, -kv_heads:]
        queries = rotated.shape[1] - kv_heads
        if norms is not None:
            rotated = _norm_heads(rotated, norms, queries)
        rotated = rotate(rotated, cos, sin)
        for place, new, scale in zip(cache, (rotated[:, queries:], values), scales, strict=True):
            put(place, slots, new, scale)
        return rotated[:, :queries]

    return store_heads


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn `[tokens, heads, head_dim]` by the angles; the sines of a head's first half are negative."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def _norm_heads(heads: Tensor, norms: HeadNorms, queries: int) -> Tensor:
    normed = F.rms_norm(heads, heads.shape[-1:], None, norms.eps)
    normed[:, :queries] *= norms.query
    normed[:, queries:] *= norms.key
    return normed


PLAIN = PointwiseKernels("torch", rms_norm, prepare_store)
