"""What a cache stores: keys and values in their own type, or as 8-bit floats, which take half the room and the time.

An 8-bit number that would be too large becomes the largest there is: an infinity would make everything after it NaN.
Keys and values of 8 bits may be divided by a scale before, which attention multiplies with (`attention.CacheScales`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_engine.config import EngineConfig
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.kernels.attention import Backend

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
E4M3_FROM = (8, 9)  # the compute capability that converts them by itself; those with 5 bits of exponent need a shift


def cache_type(config: EngineConfig, dtype: torch.dtype, device: torch.device, backend: Backend) -> torch.dtype:
    """The type of cached numbers, where weights have `dtype`; raises InvalidConfiguration where it cannot be had."""
    if config.kv_cache_dtype == "auto":
        return dtype
    if device.type != "cuda":
        raise InvalidConfiguration(config.refused_on_host)
    if backend != "triton":
        raise InvalidConfiguration(
            f"--kv-cache-dtype {config.kv_cache_dtype} is what --attention-backend {backend} does not read; use triton"
        )
    exact = torch.cuda.get_device_capability(device) >= E4M3_FROM
    return torch.float8_e4m3fn if exact else torch.float8_e5m2


def as_stored(numbers: Tensor, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """The numbers as a cache of that type keeps them; only one of 8 bits divides them by the scale, in float32."""
    if dtype not in EIGHT_BITS:
        return numbers.to(dtype)
    limit = torch.finfo(dtype).max
    divisor = torch.full(
        (), scale, device=numbers.device
    )  # by a number torch would multiply with its reciprocal on CUDA
    return numbers.float().div(divisor).clamp(-limit, limit).to(dtype)


def bits(cache: Tensor) -> Tensor:
    """A view that every indexing operation of torch accepts: 8-bit floats as bytes."""
    return cache.view(torch.uint8) if cache.dtype in EIGHT_BITS else cache


def put(cache: Tensor, slots: Tensor, numbers: Tensor, scale: float = 1.0) -> None:
    """Store `[tokens, kv_heads, dim]` at the slots of a cache `[blocks, block_size, kv_heads, dim]`."""
    bits(cache).flatten(0, 1).index_copy_(0, slots, bits(as_stored(numbers, cache.dtype, scale)))
