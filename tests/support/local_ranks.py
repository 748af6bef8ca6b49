"""Ranks of one model as threads of this process: what is computed is real, steps cross as bytes, and only the meetings
are a barrier instead of torch.distributed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from engine_harness import Harness
from octavo_engine.config import EngineConfig
from octavo_engine.kernels.attention import choose
from octavo_engine.kernels.cpu import library
from octavo_engine.model.costs import geometry_of
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.joined import Split
from octavo_engine.model.loading import load_model
from octavo_engine.model.sharding import shard_of
from octavo_engine.model.spec import read_spec
from octavo_engine.parallel import wire
from octavo_engine.runtime.inputs import StepPlan, inputs_of
from octavo_engine.runtime.kv_store import LayerCache, allocate
from octavo_engine.runtime.runner import Steps

MEETING_SECONDS = 60.0
CPU = torch.device("cpu")


class Room:
    """Where all ranks meet."""

    def __init__(self, size: int) -> None:
        self._parts: list[torch.Tensor] = [torch.empty(0)] * size
        self._barrier = threading.Barrier(size, timeout=MEETING_SECONDS)

    def meet(self, rank: int, part: torch.Tensor) -> list[torch.Tensor]:
        self._parts[rank] = part
        self._barrier.wait()
        parts = list(self._parts)
        self._barrier.wait()
        return parts

    def leave(self) -> None:
        self._barrier.abort()


class RoomPeers:
    """The Peers of one thread."""

    def __init__(self, room: Room, rank: int) -> None:
        self._room, self._rank = room, rank

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        parts = self._room.meet(self._rank, part.clone())
        assert len({tuple(other.shape) for other in parts}) == 1, "ranks have come to different meetings"
        total = parts[0].clone()
        for other in parts[1:]:
            total += other
        return total

    def collect(self, part: torch.Tensor) -> list[torch.Tensor]:
        parts = self._room.meet(self._rank, part.clone())
        return parts if self._rank == 0 else []


def load(path: Path, dtype: torch.dtype, split: Split | None = None) -> Decoder:
    kernels = choose("torch" if library.load() is None else "cpu")
    return load_model(str(path), dtype=dtype, device=CPU, kernels=kernels, split=split)


@contextmanager
def several_ranks(
    path: Path, size: int, dtype: torch.dtype = torch.float32, **options: int | bool
) -> Iterator[Harness]:
    """An engine over rank 0, which the others follow. At the end nobody is in the middle of anything."""
    room, spec = Room(size), read_spec(str(path))
    decoders = [load(path, dtype, Split(shard_of(spec, rank, size), RoomPeers(room, rank))) for rank in range(size)]
    steps: list[queue.SimpleQueue[bytes | None]] = [queue.SimpleQueue() for _ in decoders[1:]]
    block_size, blocks = int(options.get("block_size", 16)), int(options.get("blocks", 512))
    faults: list[BaseException] = []

    def follow(decoder: Decoder, told: queue.SimpleQueue[bytes | None]) -> None:
        caches = poisoned(decoder, blocks, block_size)
        try:
            with torch.inference_mode():
                while (step := told.get()) is not None:
                    Steps(decoder, caches)(inputs_of(wire.decode(step), block_size, CPU))
        except BaseException as fault:
            faults.append(fault)
            room.leave()

    def tell(plan: StepPlan) -> None:
        for told in steps:
            told.put(wire.encode(plan))

    threads = [threading.Thread(target=follow, args=pair) for pair in zip(decoders[1:], steps, strict=True)]
    for thread in threads:
        thread.start()
    try:
        yield Harness(decoders[0], tell=tell, **options)
        assert not faults
    finally:
        for told in steps:
            told.put(None)
        for thread in threads:
            thread.join(MEETING_SECONDS)
            assert not thread.is_alive(), "a rank still waits for the others"


def poisoned(decoder: Decoder, blocks: int, block_size: int) -> list[LayerCache]:
    """A cache of NaN, so that what is read before it is written shows."""
    geometry = geometry_of(decoder.spec, EngineConfig(block_size=block_size), decoder.final_norm.element_size())
    caches = allocate(geometry, blocks, dtype=decoder.final_norm.dtype, device=CPU)
    for pair in caches:
        for tensor in pair:
            tensor.fill_(float("nan"))
    return caches
