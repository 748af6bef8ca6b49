"""The memory behind the block numbers: one key and one value tensor per layer."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import torch

from octavo_engine.memory import CacheGeometry

LayerCache = tuple[torch.Tensor, torch.Tensor]
HUGE_PAGE_BYTES = 2 * 1024**2


def allocate(geometry: CacheGeometry, num_blocks: int, *, dtype: torch.dtype, device: torch.device) -> list[LayerCache]:
    """Key and value caches of all layers, each `[num_blocks, block_size, kv_heads, head_dim]`.

    On a host every page is touched: a pool that the machine only promised would end the process under load, when the
    promise is called in, and the first requests would wait for their pages.
    """
    shape: Sequence[int] = (num_blocks, geometry.block_size, geometry.kv_heads, geometry.head_dim)
    caches = [
        (torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))
        for _ in range(geometry.layers)
    ]
    if device.type == "cpu":
        for cache in caches:
            for tensor in cache:
                touch(tensor)
    return caches


def touch(tensor: torch.Tensor) -> None:
    """Write zeros over a host tensor, in huge pages where the kernel has them: one fault in place of 512.

    Attention then also finds its blocks with fewer looks at the page table. The advice may be refused; nothing is lost.
    """
    begin = -(-tensor.data_ptr() // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    size = (tensor.data_ptr() + tensor.nbytes - begin) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if size > 0:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_HUGEPAGE)
    tensor.zero_()
