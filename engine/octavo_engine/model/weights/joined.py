"""A rank's products as parts of the whole model's: what is exchanged with the others, and where.

Knows of the others only that they add up and collect (`Peers`): processes are elsewhere (`parallel`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from octavo_engine.kernels.layers import LayerWeights
from octavo_engine.kernels.linear import LookUp, Projection, Tied
from octavo_engine.model.tensors.sharding import Shard, shards_of


class Peers(Protocol):
    """The ranks of a model, as one of them sees them. All make the same calls in the same order, and wait for each
    other in every one."""

    def add_up(self, part: Tensor) -> Tensor:
        """The sum of everybody's `part`, which have one shape and may be overwritten: the same bits for all."""

    def collect(self, part: Tensor) -> list[Tensor]:
        """For rank 0, everybody's `part`, in the order of ranks; for the others nothing."""


@dataclass(frozen=True, slots=True)
class Joined:
    """A Projection of which each rank has some inputs.

    On a processor the parts are added in float32, before the one rounding; between accelerators in the model's own
    type, since there the bytes on the wire are what it costs.
    """

    part: Projection
    peers: Peers

    def __call__(self, x: Tensor) -> Tensor:
        """`[tokens, out]`, on every rank."""
        return self._sum(x).to(x.dtype)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        """Adds in place."""
        return residual.add_(self._sum(x))

    def wide(self, x: Tensor) -> Tensor:
        """The same as float32."""
        return self._sum(x).float()

    def _sum(self, x: Tensor) -> Tensor:
        return self.peers.add_up(self.part.wide(x) if x.device.type == "cpu" else self.part(x))


@dataclass(frozen=True, slots=True)
class SplitRows:
    """A LookUp in an embedding of which each rank has some rows: zeros stand for those that others have."""

    rows: LookUp
    vocab: range  # this rank's
    peers: Peers

    def __call__(self, tokens: Tensor) -> Tensor:
        """int64 `[tokens]` -> `[tokens, hidden]`, on every rank."""
        own = tokens - self.vocab.start
        foreign = (own < 0) | (own >= len(self.vocab))
        found = self.rows(own.masked_fill(foreign, 0))
        return self.peers.add_up(found.masked_fill(foreign[:, None], 0))


@dataclass(frozen=True, slots=True)
class SplitHead:
    """The projection to a vocabulary of which each rank has some tokens."""

    part: Projection
    widths: tuple[int, ...]  # tokens of each rank
    peers: Peers

    def wide(self, hidden: Tensor) -> Tensor:
        """float32 `[n, vocab]` for rank 0; the others have nobody to give theirs to, and return their own part."""
        own = self.part.wide(hidden)
        parts = self.peers.collect(F.pad(own, (0, max(self.widths) - own.shape[1])))
        if not parts:
            return own
        return torch.cat([part[:, :width] for part, width in zip(parts, self.widths, strict=True)], dim=1)


@dataclass(frozen=True, slots=True)
class Split:
    """This rank's shard, and those who have the rest."""

    shard: Shard
    peers: Peers

    def layer(self, layer: LayerWeights) -> LayerWeights:
        """The layer with its two sums over all ranks."""
        return replace(layer, output=Joined(layer.output, self.peers), down=Joined(layer.down, self.peers))

    def ends(self, ends: Tied) -> tuple[SplitRows, SplitHead]:
        """The embedding of the whole vocabulary, and the projection to it."""
        widths = tuple(len(shard.vocab) for shard in shards_of(self.shard.whole, self.shard.size))
        return SplitRows(ends.look_up, self.shard.vocab, self.peers), SplitHead(ends.head, widths, self.peers)
