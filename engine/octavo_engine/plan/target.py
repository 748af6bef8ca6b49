"""The device to plan for: one of the table, or the processor here with its container's limit. Loads torch for that."""

from __future__ import annotations

from octavo_engine import machine_cache
from octavo_engine.config import EngineConfig
from octavo_engine.devices import Device
from octavo_engine.memory import DeviceRoom, HostRoom
from octavo_engine.plan.estimate import Target
from octavo_engine.plan.settings import PlanConfig
from octavo_engine.roofline import Machine
from octavo_engine.runtime import host

BUSY = "others use this machine now, so its figures are too low: measure again when they do not (--measure)"


def device_target(device: Device, config: PlanConfig, engine: EngineConfig, *, width: int) -> Target:
    """An accelerator, with products of weights of `width` bytes."""
    memory = config.memory_bytes or device.memory_bytes
    room = DeviceRoom(
        total=memory,
        utilization=engine.gpu_memory_utilization,
        others=config.held_by_others,
        wanted=engine.kv_cache_memory_bytes,
    )
    return Target(
        machine=device.machine(width), memory_bytes=memory, room=room, on_host=False, fp8_flops=device.fp8_flops
    )


def host_target(config: PlanConfig, engine: EngineConfig, *, dtype: str) -> Target:
    """This processor, with a container of `--memory-bytes` or with this one's limit."""
    limit = config.memory_bytes or host.memory_limit()
    left = None if config.memory_bytes else host.memory_left()
    if config.held_by_others:
        left = limit - config.held_by_others
    ranks, wanted = engine.tensor_parallel_size, engine.kv_cache_memory_bytes
    room = HostRoom(limit=limit, wanted=wanted, left_by_others=left, processes=ranks)
    threads = None if engine.threads is None else engine.threads * ranks
    machine, doubt = _machine_here(threads, dtype, anew=config.measure)
    return Target(machine=machine, memory_bytes=limit, room=room, on_host=True, doubt=doubt)


def _machine_here(threads: int | None, dtype: str, *, anew: bool) -> tuple[Machine, str | None]:
    """Its figures, and a word of doubt where they were measured just now, beside other work."""
    import torch  # noqa: PLC0415 (plans for accelerators do without)

    from octavo_engine.runtime.measurement import busy, machine_of  # noqa: PLC0415

    torch.set_num_threads(threads or host.cpu_limit())
    known, others = machine_cache.load(), busy()
    machine = machine_of(torch.device("cpu"), getattr(torch, dtype), anew=anew)
    return machine, BUSY if others and machine not in known.values() else None
