"""What a worker computes with: one rank's weights, its part of the cache, and its peers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

import torch

from octavo_engine.kernels.attention import choose
from octavo_engine.memory import plan_cache
from octavo_engine.model.costs import geometry_of, needs_of
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.joined import Split
from octavo_engine.model.loading import load_model
from octavo_engine.model.sharding import shard_of
from octavo_engine.model.spec import read_spec
from octavo_engine.parallel import wire
from octavo_engine.parallel.assignment import Assignment
from octavo_engine.parallel.board import Board
from octavo_engine.parallel.peers import TorchPeers, device_of, join
from octavo_engine.runtime.inputs import inputs_of
from octavo_engine.runtime.kv_store import LayerCache, allocate
from octavo_engine.runtime.room import as_loaded, room_of
from octavo_engine.runtime.runner import Steps


class ShardEngine:
    """One rank's part of the model and of the cache."""

    def __init__(self, assignment: Assignment, decoder: Decoder, peers: TorchPeers, device: torch.device) -> None:
        self._assignment, self._decoder, self._peers, self._device = assignment, decoder, peers, device
        self._caches: list[LayerCache] = []

    @classmethod
    def load(cls, assignment: Assignment, board: Board, on_progress: Callable[[int, int], None]) -> Self:
        """Meet the others and read this rank's weights; raises StartupError."""
        torch.set_num_threads(assignment.threads)
        device = device_of(assignment.device, assignment.rank)
        rank, size = assignment.rank, assignment.size
        peers = join(rank, size, Path(assignment.place), device, board)
        config, spec = assignment.config, read_spec(assignment.config.model)
        shard = shard_of(spec, rank, size)
        decoder = load_model(  # with the arguments that rank 0 gives it in `assembly`
            config.model,
            dtype=getattr(torch, assignment.dtype),
            device=device,
            kernels=choose(assignment.backend),
            max_model_len=needs_of(spec, config, width=1).max_model_len,
            split=Split(shard, peers),
            on_progress=on_progress,
        )
        return cls(assignment, decoder, peers, device)

    @property
    def weight_bytes(self) -> int:
        """Bytes of this rank's weights."""
        return self._decoder.parameter_bytes

    def blocks(self) -> int | None:
        """How many KV blocks this rank's device holds beside the weights; None on a host, where rank 0 counts for all.

        Raises InsufficientMemory.
        """
        if self._device.type == "cpu":
            return None
        config = self._assignment.config
        needs = needs_of(read_spec(config.model), config, width=self._width)
        return plan_cache(as_loaded(needs, self._device), room_of(config, self._device)).blocks

    def allocate(self, blocks: int) -> None:
        """Make this rank's part of the cache; raises InsufficientMemory."""
        geometry = geometry_of(self._decoder.spec, self._assignment.config, self._width)
        dtype = getattr(torch, self._assignment.cached)
        self._caches = allocate(geometry, blocks, dtype=dtype, device=self._device)

    @torch.inference_mode()
    def step(self, data: bytes) -> None:
        """Compute a step, given as `wire.encode` gave it; raises NotAStep, and what a kernel or a lost peer raises."""
        inputs = inputs_of(wire.decode(data), self._assignment.config.block_size, self._device)
        Steps(self._decoder, self._caches)(inputs)

    def leave(self) -> None:
        """Part from the peers."""
        self._peers.leave()

    @property
    def _width(self) -> int:
        return self._decoder.final_norm.element_size()
