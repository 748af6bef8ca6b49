"""The contract of attention: the tensors of one step, and what a set of kernels offers.

Owns no arithmetic. A step's sequences are ordered: those with exactly one query token first, the others after them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from octavo_engine.kernels.recorded import RecordedNumbers

Backend = Literal["reference", "torch", "cpu", "triton"]


@dataclass(frozen=True, slots=True)
class StepLayout:
    """Where the tokens of one step lie, in their sequences and in the cache. All tensors are on the model's device."""

    positions: Tensor  # int64 [tokens], index of each token in its sequence
    slots: Tensor  # int64 [tokens], block * block_size + offset at which the token's key and value are stored
    query_start: Tensor  # int32 [sequences + 1], first token of each sequence; the last entry is the number of tokens
    context_lens: Tensor  # int32 [sequences], tokens of the sequence including this step's
    block_tables: Tensor  # int32 [sequences, max_blocks], padded with 0
    max_query: int  # most tokens one sequence computes in this step
    max_context: int  # largest of context_lens
    num_decodes: int  # the first num_decodes sequences compute exactly one token
    numbers: RecordedNumbers | None = None  # of a step that is recorded: then max_context is of all that it replays


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""`(query [tokens, heads, dim], key_cache, value_cache [blocks, block_size, kv_heads, dim]) -> like query`."""


class CacheScales(NamedTuple):
    """What a layer's keys and values are divided by when a cache of 8 bits stores them. Others divide nothing."""

    key: float = 1.0
    value: float = 1.0


UNSCALED = CacheScales()


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """What, besides the layout, a step's attention depends on; the same for layers with the same window and scales."""

    block_size: int  # tokens in one block
    kv_heads: int
    head_dim: int
    dtype: torch.dtype  # of queries; the cache has it, too, or one of `stored.EIGHT_BITS`
    scale: float  # factor on query x key
    sliding_window: int | None = None  # a token sees itself and the sliding_window - 1 before it; None: all before it
    scales: CacheScales = UNSCALED  # of a cache that has one of `stored.EIGHT_BITS`


@dataclass(frozen=True, slots=True)
class AttentionKernels:
    """One set of kernels. All sets compute the same function.

    `write_kv(key, value, key_cache, value_cache, slots)` stores `[tokens, kv_heads, dim]` at `slots`, unscaled.
    `prepare(layout, shape)` does, once a step, all that depends on the layout alone, and returns what each layer calls.
    A kernel reads no slot outside the sequence's own `context_lens` tokens: whatever lies there never shows.
    """

    name: str
    write_kv: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    prepare: Callable[[StepLayout, AttentionShape], Attend]

    def attend(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        layout: StepLayout,
        *,
        scale: float,
        window: int | None = None,
        scales: CacheScales = UNSCALED,
    ) -> Tensor:
        """Prepare and attend at once, for a single layer: causal attention of each query over its sequence's cache."""
        _, block_size, kv_heads, head_dim = key_cache.shape
        shape = AttentionShape(block_size, kv_heads, head_dim, query.dtype, scale, window, scales)
        return self.prepare(layout, shape)(query, key_cache, value_cache)
