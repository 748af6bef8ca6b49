"""Measures the memory that an engine may take a part of: the host's, or an accelerator's with what others hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from octavo_engine.config import EngineConfig
from octavo_engine.memory import DeviceRoom, Needs, Room
from octavo_engine.runtime.host_room import host_room


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """An accelerator's memory at one moment, in bytes."""

    total: int
    free: int
    ours: int  # reserved by this process's allocator

    @classmethod
    def of(cls, device: torch.device) -> DeviceMemory:
        """Ask the driver."""
        free, total = torch.cuda.mem_get_info(device)
        return cls(total, free, torch.cuda.memory_reserved(device))


def room_of(config: EngineConfig, device: torch.device) -> Room:
    """The room on that device, as it is now."""
    if device.type == "cpu":
        return host_room(config)
    return device_room(config, DeviceMemory.of(device))


def device_room(config: EngineConfig, memory: DeviceMemory) -> DeviceRoom:
    """An accelerator's room: whatever is neither free nor ours is held by others."""
    return DeviceRoom(
        total=memory.total,
        utilization=config.gpu_memory_utilization,
        others=max(0, memory.total - memory.free - memory.ours),
        wanted=config.kv_cache_memory_bytes,
    )


def as_loaded(needs: Needs, device: torch.device) -> Needs:
    """The same needs once the weights are there: on an accelerator, with what its allocator really took for them."""
    return needs if device.type == "cpu" else replace(needs, weights=DeviceMemory.of(device).ours)
