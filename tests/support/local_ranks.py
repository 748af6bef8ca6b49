"""Ranks of one model as threads of this process: what is computed is real, steps cross as bytes, and only the meetings
are a barrier instead of torch.distributed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine_harness import Harness
from octavo_engine.config import EngineConfig
from octavo_engine.errors import EngineDead
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import library
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.loading import load_model
from octavo_engine.model.spec import read_spec
from octavo_engine.model.tensors.costs import geometry_of
from octavo_engine.model.tensors.sharding import shard_of
from octavo_engine.model.weights.joined import Split
from octavo_engine.parallel import wire
from octavo_engine.parallel.following import Follower
from octavo_engine.parallel.leading import RecordedTogether
from octavo_engine.runtime.graphs import GraphedSteps, Recorder
from octavo_engine.runtime.inputs import StepPlan
from octavo_engine.runtime.kv_store import LayerCache, allocate
from octavo_engine.runtime.runner import Steps
from patience import PATIENCE_SECONDS

MEETING_SECONDS = PATIENCE_SECONDS
LONGEST = 512  # tokens that recorded decodes are for
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
    """The Peers of one thread. Counts the times when tokens were spread."""

    def __init__(self, room: Room, rank: int) -> None:
        self._room, self._rank = room, rank
        self.spreads = 0

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

    def spread(self, numbers: torch.Tensor) -> None:
        parts = self._room.meet(self._rank, numbers.clone())
        assert len({tuple(other.shape) for other in parts}) == 1, "ranks have come to different meetings"
        self.spreads += 1
        numbers.copy_(parts[0])


def load(path: Path, dtype: torch.dtype, split: Split | None = None) -> Decoder:
    kernels = choose_attention("torch" if library.load() is None else "cpu")
    return load_model(str(path), dtype=dtype, device=CPU, kernels=kernels, split=split)


@dataclass
class Company:
    """Rank 0's engine, and the Team of the threads that follow it."""

    room: Room
    peers: list[RoomPeers]
    told: list[queue.SimpleQueue[bytes | dict[str, Any] | None]]  # to each other rank
    answers: list[queue.SimpleQueue[dict[str, str]]]  # of each
    faults: list[BaseException] = field(default_factory=list)
    graphs: list[GraphedSteps] = field(default_factory=list)  # of all ranks, where there are some
    harness: Harness = field(init=False)

    def tell(self, plan: StepPlan) -> None:
        for line in self.told:
            line.put(wire.encode(plan))

    def say(self, **words: Any) -> None:
        for line in self.told:
            line.put(words)

    def wait_for(self, word: str) -> list[dict[str, str]]:
        found = [line.get(timeout=MEETING_SECONDS) for line in self.answers]
        assert all(word in words for words in found)
        return found

    def broken(self, otherwise: str) -> EngineDead:
        return EngineDead(otherwise)

    def record(self, size: int) -> None:
        """What rank 0's step thread does between two steps."""
        RecordedTogether(self.graphs[0], self)(size)  # type: ignore[arg-type]

    def follow(self, follower: Follower, rank: int) -> None:
        """A thread's whole life."""
        try:
            while (message := self.told[rank - 1].get()) is not None:
                if isinstance(message, bytes):
                    follower.step(message)
                elif answer := follower.obey(message):
                    self.answers[rank - 1].put(answer)
        except BaseException as fault:
            self.faults.append(fault)
            self.room.leave()


@contextmanager
def company(
    path: Path,
    size: int,
    dtype: torch.dtype = torch.float32,
    *,
    recorders: Sequence[Recorder] = (),
    sizes: Sequence[int] = (),
    **options: Any,
) -> Iterator[Company]:
    """An engine over rank 0, which the others follow. At the end nobody is in the middle of anything.

    recorders: each rank's, where decodes of those sizes are to be recorded.
    """
    room, spec = Room(size), read_spec(str(path))
    peers = [RoomPeers(room, rank) for rank in range(size)]
    decoders = [load(path, dtype, Split(shard_of(spec, rank, size), peers[rank])) for rank in range(size)]
    others = range(1, size)
    made = Company(room, peers, [queue.SimpleQueue() for _ in others], [queue.SimpleQueue() for _ in others])
    block_size, spare = int(options.get("block_size", 16)), 1 if recorders else 0

    def wrapped(steps: Steps, rank: int) -> Steps | GraphedSteps:
        if not recorders:
            return steps
        made.graphs.append(GraphedSteps.over(steps, sizes, recorders[rank], max_context=LONGEST))
        return made.graphs[-1]

    made.harness = Harness(
        decoders[0],
        tell=made.tell,
        spread=peers[0].spread,
        spare_blocks=spare,
        wrap=lambda steps: wrapped(steps, 0),
        **options,
    )
    threads = []
    for rank, decoder in enumerate(decoders[1:], 1):
        caches = poisoned(decoder, int(options.get("blocks", 512)) + spare, block_size)
        follower = Follower(
            wrapped(Steps(decoder, caches, alone=False), rank), peers[rank], block_size=block_size, device=CPU
        )
        threads.append(threading.Thread(target=made.follow, args=(follower, rank)))
    for thread in threads:
        thread.start()
    try:
        yield made
        assert not made.faults, made.faults
    finally:
        for line in made.told:
            line.put(None)
        for thread in threads:
            thread.join(MEETING_SECONDS)
            assert not thread.is_alive(), "a rank still waits for the others"


@contextmanager
def several_ranks(path: Path, size: int, dtype: torch.dtype = torch.float32, **options: Any) -> Iterator[Harness]:
    """The engine of a company."""
    with company(path, size, dtype, **options) as made:
        yield made.harness


def poisoned(decoder: Decoder, blocks: int, block_size: int) -> list[LayerCache]:
    """A cache of NaN, so that what is read before it is written shows."""
    geometry = geometry_of(decoder.spec, EngineConfig(block_size=block_size), decoder.final_norm.element_size())
    caches = allocate(geometry, blocks, dtype=decoder.final_norm.dtype, device=CPU)
    for pair in caches:
        for tensor in pair:
            tensor.fill_(float("nan"))
    return caches
