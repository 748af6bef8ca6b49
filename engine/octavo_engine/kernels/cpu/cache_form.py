"""How the compiled kernels lay keys and values in a block: as products read them (`native/cache_block.h` says why).

The tensors keep the shape that every set of kernels has, `[blocks, block_size, kv_heads, head_dim]`; what lies where
within a block and a head is these kernels' own.
"""

from __future__ import annotations

from torch import Tensor

from octavo_engine.kernels import torch_paged
from octavo_engine.kernels.cpu.library import SUFFIXES

WORD_BYTES = 4


def keys_by_word(cache: Tensor) -> Tensor:
    """Keys `[blocks, block_size, kv_heads, head_dim]` as `[blocks, kv_heads, words, block_size, numbers of a word]`."""
    blocks, size, heads, dim = cache.shape
    step = WORD_BYTES // cache.element_size()
    return cache.view(blocks, heads, dim // step, size, step)


def values_by_word(cache: Tensor) -> Tensor:
    """Values of the same shape as `[blocks, kv_heads, words of tokens, head_dim, tokens of a word]`."""
    blocks, size, heads, dim = cache.shape
    step = WORD_BYTES // cache.element_size()
    return cache.view(blocks, heads, size // step, dim, step)


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Store `[tokens, kv_heads, head_dim]` at `slots`; of a type that the kernels do not compute, as torch reads it."""
    if key_cache.dtype not in SUFFIXES:
        return torch_paged.write_kv(key, value, key_cache, value_cache, slots)
    size, step = key_cache.shape[1], WORD_BYTES // key_cache.element_size()
    block, token = slots // size, slots % size
    keys_by_word(key_cache)[block, :, :, token] = key.reshape(*key.shape[:-1], -1, step)
    values_by_word(value_cache)[block, :, token // step, :, token % step] = value
    return None
