"""A cache's memory on this host, as a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo_engine.runtime.host_pages import HostPages


def host_pool(size: int, pages: HostPages | None = None) -> Tensor:
    """uint8 `[size]`, of zeros. Raises InsufficientMemory where the machine does not have that much.

    Every page is there when this returns: a pool that the machine only promised would end the process under load, when
    the promise is called in, and the first requests would wait for their pages. With huge pages, one fault stands for
    512, and attention finds its blocks with fewer looks at the page table. The kernel zeroes pages as it gives them, so
    that nothing is written a second time here. `pages` are some that were begun before, if they are enough.
    """
    if pages is None or pages.size < size:
        pages = HostPages(size)
    pages.complete(size, torch.get_num_threads())
    return torch.frombuffer(pages.memory, dtype=torch.uint8)[:size]  # holds the memory as long as it is in use
