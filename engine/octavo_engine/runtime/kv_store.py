"""The memory behind the block numbers: one key and one value tensor per layer."""

from __future__ import annotations

import math

import torch

from octavo_engine.errors import InsufficientMemory
from octavo_engine.memory import GIB, CacheGeometry
from octavo_engine.runtime.host_pages import HostPages
from octavo_engine.runtime.host_pool import host_pool

LayerCache = tuple[torch.Tensor, torch.Tensor]


def allocate(
    geometry: CacheGeometry,
    num_blocks: int,
    *,
    dtype: torch.dtype,
    device: torch.device,
    pages: HostPages | None = None,
) -> list[LayerCache]:
    """Key and value caches of all layers, each `[num_blocks, block_size, kv_heads, head_dim]`.

    On a host they are parts of one pool, every page of which is there: of `pages`, if those were begun and are enough.
    Raises InsufficientMemory where it cannot be.
    """
    shape = (geometry.layers, 2, num_blocks, geometry.block_size, geometry.kv_heads, geometry.head_dim)
    if device.type == "cpu":
        pool = host_pool(num_blocks * geometry.block_bytes, pages).view(dtype).view(shape)
    else:
        pool = _device_pool(shape, dtype, device)
    return [(layer[0], layer[1]) for layer in pool]


def _device_pool(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except torch.OutOfMemoryError as error:  # it was free when it was counted: others took it, or it is in pieces
        size = math.prod(shape) * dtype.itemsize
        raise InsufficientMemory(
            f"the device does not give {size / GIB:.2f} GiB for the KV cache: lower --gpu-memory-utilization, or end"
            " what else holds its memory"
        ) from error
