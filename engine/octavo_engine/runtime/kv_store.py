"""The memory behind the block numbers: one key and one value tensor per layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from octavo_engine.memory import CacheGeometry

LayerCache = tuple[torch.Tensor, torch.Tensor]


def allocate(geometry: CacheGeometry, num_blocks: int, *, dtype: torch.dtype, device: torch.device) -> list[LayerCache]:
    """Key and value caches of all layers, each `[num_blocks, block_size, kv_heads, head_dim]`.

    Left uninitialised: on a host, pages cost memory only once they are written, and no token is read before it is.
    """
    shape: Sequence[int] = (num_blocks, geometry.block_size, geometry.kv_heads, geometry.head_dim)
    return [
        (torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))
        for _ in range(geometry.layers)
    ]
