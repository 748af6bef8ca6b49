"""What a rank other than the first does with what it is told: it computes a step, records decodes, or forgets them.

The same as rank 0 does at the same place among its steps: what the ranks exchange is in one order for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from octavo_engine.parallel import wire
from octavo_engine.runtime.graph_capture import NotRecorded
from octavo_engine.runtime.graphs import GraphedSteps
from octavo_engine.runtime.inputs import inputs_of
from octavo_engine.runtime.runner import Compute

RECORD, FORGET = "record", "forget"  # sequences of a decode: what rank 0 says between two steps


def recorded_word(size: int) -> str:
    """The word with which a rank answers RECORD; what it says is why it could not, or nothing."""
    return f"graph of {size}"


class Spread(Protocol):
    """The other ranks, as far as a step's tokens are concerned."""

    def spread(self, numbers: Tensor, /) -> None:
        """Rank 0's numbers become ours, in place."""


class Follower:
    """One rank's steps. Beside keys and values it keeps what it has recorded."""

    def __init__(self, compute: Compute, peers: Spread, *, block_size: int, device: torch.device) -> None:
        self._compute, self._peers = compute, peers
        self._block_size, self._device = block_size, device

    @torch.inference_mode()
    def step(self, data: bytes) -> None:
        """Compute a step, given as `wire.encode` gave it; raises NotAStep, and what a kernel or a lost peer raises.

        Tokens that rank 0's host does not know yet come from its device to ours.
        """
        plan = wire.decode(data)
        inputs = inputs_of(plan, self._block_size, self._device)
        if unknown := plan.num_unknown:
            self._peers.spread(inputs.tokens[:unknown])
        self._compute(inputs)

    def obey(self, words: Mapping[str, Any]) -> dict[str, str]:
        """Do what rank 0 says between two steps; the answer, which may be empty."""
        ((word, size),) = words.items()
        assert word in {RECORD, FORGET}, "once it serves, rank 0 speaks of steps and graphs only"
        assert isinstance(self._compute, GraphedSteps), "only who has graphs is told of them"
        if word == FORGET:
            self._compute.forget(size)
            return {}
        return {recorded_word(size): why_not(self._compute, size)}

    def close(self) -> None:
        """Forget all graphs: the peers can be left then."""
        if isinstance(self._compute, GraphedSteps):
            self._compute.forget_all()


def why_not(graphs: GraphedSteps, size: int) -> str:
    """Record a size of decodes; empty if it is recorded, else why it is not.

    What fails before the recording is no answer, but raised: others wait in the meetings of that step, and for ever.
    """
    try:
        graphs.record(size)
    except NotRecorded as error:
        return str(error) or type(error).__name__
    return ""
