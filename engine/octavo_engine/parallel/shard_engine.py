"""What a worker computes with: one rank's weights, its part of the cache, its graphs, and its peers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self

import torch

from octavo_engine.kernels.choice import choose_attention
from octavo_engine.memory import plan_cache
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.loading import load_model
from octavo_engine.model.spec import read_spec
from octavo_engine.model.tensors.costs import geometry_of, needs_of
from octavo_engine.model.tensors.sharding import shard_of
from octavo_engine.model.weights.joined import Split
from octavo_engine.parallel.assignment import Assignment
from octavo_engine.parallel.board import Board
from octavo_engine.parallel.following import Follower
from octavo_engine.parallel.peers import TorchPeers, device_of, join
from octavo_engine.runtime.cuda_recorder import CudaRecorder
from octavo_engine.runtime.graphs import GraphedSteps
from octavo_engine.runtime.identity import identity_of
from octavo_engine.runtime.kv_store import allocate
from octavo_engine.runtime.room import as_loaded, room_of
from octavo_engine.runtime.runner import Steps

log = logging.getLogger(__name__)


class ShardEngine:
    """One rank's part of the model and of the cache."""

    def __init__(self, assignment: Assignment, decoder: Decoder, peers: TorchPeers, device: torch.device) -> None:
        self._assignment, self._decoder, self._peers, self._device = assignment, decoder, peers, device

    @classmethod
    def load(cls, assignment: Assignment, board: Board, on_progress: Callable[[int, int], None]) -> Self:
        """Meet the others and read this rank's weights; raises StartupError."""
        torch.set_num_threads(assignment.threads)
        device = device_of(assignment.device, assignment.rank)
        log.info("computes on %s", identity_of(device))
        rank, size = assignment.rank, assignment.size
        peers = join(rank, size, Path(assignment.place), device, board)
        config, spec = assignment.config, read_spec(assignment.config.model)
        shard = shard_of(spec, rank, size)
        decoder = load_model(  # with the arguments that rank 0 gives it in `assembly`
            config.model,
            dtype=getattr(torch, assignment.dtype),
            device=device,
            kernels=choose_attention(assignment.backend),
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

    def follower(self, blocks: int) -> Follower:
        """What follows rank 0, over this rank's part of a cache of so many blocks, which is made here: the last one is
        that of graphs, where there are some. Raises InsufficientMemory."""
        config = self._assignment.config
        geometry = geometry_of(self._decoder.spec, config, self._width)
        caches = allocate(geometry, blocks, dtype=getattr(torch, self._assignment.cached), device=self._device)
        steps = self._graphed(Steps(self._decoder, caches, alone=False))
        return Follower(steps, self._peers, block_size=config.block_size, device=self._device)

    def _graphed(self, steps: Steps) -> Steps | GraphedSteps:
        """With graphs, none of which is recorded yet, exactly where rank 0 has them."""
        config = self._assignment.config
        if self._device.type != "cuda" or not (sizes := config.graph_sizes):
            return steps
        longest = needs_of(read_spec(config.model), config, width=1).max_model_len
        return GraphedSteps.over(steps, sizes, CudaRecorder(self._device), max_context=longest)

    def leave(self) -> None:
        """Part from the peers; graphs must be forgotten by then."""
        self._peers.leave()

    @property
    def _width(self) -> int:
        return self._decoder.final_norm.element_size()
