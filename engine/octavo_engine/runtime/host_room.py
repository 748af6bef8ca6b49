"""A host's room for a cache, and the pages that are put there before the model is known. Loads no torch."""

from __future__ import annotations

from octavo_engine.config import EngineConfig
from octavo_engine.errors import InsufficientMemory
from octavo_engine.memory import HostRoom
from octavo_engine.runtime import host
from octavo_engine.runtime.host_pages import HostPages


def host_room(config: EngineConfig) -> HostRoom:
    """As it is now."""
    return HostRoom(
        limit=host.memory_limit(),
        wanted=config.kv_cache_memory_bytes,
        left_by_others=host.memory_left(),
        processes=config.tensor_parallel_size,
    )


def pages_ahead(config: EngineConfig) -> HostPages | None:
    """Begin to put pages behind the cache's memory; None where it may lie elsewhere, or in several processes.

    A wrong guess costs little: what the model's cache does not take is given back before its weights are loaded.
    """
    on_host = config.device == "cpu" or not (config.device == "cuda" or host.has_accelerator())
    size = host_room(config).likely_bytes if on_host and config.tensor_parallel_size == 1 else 0
    if not size:
        return None
    try:
        pages = HostPages(size)
    except InsufficientMemory:  # whoever knows the model says so with its numbers
        return None
    pages.begin()
    return pages
