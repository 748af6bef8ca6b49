"""The memory behind the block numbers: one key and one value tensor per layer."""

from __future__ import annotations

import torch

from octavo_engine.memory import CacheGeometry
from octavo_engine.runtime.host_pool import host_pool

LayerCache = tuple[torch.Tensor, torch.Tensor]


def allocate(geometry: CacheGeometry, num_blocks: int, *, dtype: torch.dtype, device: torch.device) -> list[LayerCache]:
    """Key and value caches of all layers, each `[num_blocks, block_size, kv_heads, head_dim]`.

    On a host they are parts of one pool, every page of which is there; raises InsufficientMemory where it cannot be.
    """
    shape = (geometry.layers, 2, num_blocks, geometry.block_size, geometry.kv_heads, geometry.head_dim)
    if device.type == "cpu":
        pool = host_pool(num_blocks * geometry.block_bytes).view(dtype).view(shape)
    else:
        pool = torch.empty(shape, dtype=dtype, device=device)
    return [(layer[0], layer[1]) for layer in pool]
