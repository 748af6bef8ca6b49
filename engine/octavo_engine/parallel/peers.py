"""The other ranks by way of torch.distributed: NCCL between CUDA devices, gloo between processes on a processor.

The only module that knows torch.distributed. Ranks of one model are on one machine: they meet through a file that is
theirs alone, and talk over the loopback interface, so that no port is open to others.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor

from octavo_engine.parallel.board import Board, Meeting

JOIN_SECONDS = 600.0  # for all ranks to meet; rank 0 notices sooner when one has ended meanwhile
# A meeting lasts as long as its slowest rank. Who does not come is noticed by rank 0's watchdog, long before this.
MEETING = timedelta(hours=1)
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def stay_local(environment: MutableMapping[str, str]) -> None:
    """Have the libraries talk over the loopback interface, unless a user has chosen one."""
    for name in INTERFACES:
        environment.setdefault(name, "lo")


@dataclass(frozen=True, slots=True)
class TorchPeers:
    """The Peers of one rank; made by `join`."""

    rank: int
    size: int
    board: Board

    def add_up(self, part: Tensor) -> Tensor:
        """See Peers. On a processor parts are added in the order of ranks, whatever a step's size: a library's own sum
        cuts tensors by their size, and a token's sum would then depend on its neighbours."""
        from torch import distributed  # noqa: PLC0415

        self.board.come(self.rank, Meeting.ALL_REDUCE)
        if part.device.type != "cpu":
            distributed.all_reduce(part)
            return part
        parts = torch.empty((self.size, *part.shape), dtype=part.dtype)
        distributed.all_gather_into_tensor(_bytes(parts), _bytes(part.contiguous()))
        total = parts[0]
        for other in parts[1:]:
            total += other
        return total

    def collect(self, part: Tensor) -> list[Tensor]:
        """See Peers."""
        from torch import distributed  # noqa: PLC0415

        self.board.come(self.rank, Meeting.GATHER)
        parts = [torch.empty_like(part) for _ in range(self.size)] if self.rank == 0 else []
        distributed.gather(part.contiguous(), parts or None, dst=0)
        return parts

    def spread(self, numbers: Tensor) -> None:
        """Rank 0's numbers become everybody's, in place; all have the same shape. The host waits for no device."""
        from torch import distributed  # noqa: PLC0415

        self.board.come(self.rank, Meeting.BROADCAST)
        distributed.broadcast(numbers, src=0)

    def leave(self) -> None:
        """Give the connections back: returns when all ranks do so, and not before.

        Graphs that have recorded a meeting must be gone by then: NCCL waits for their end, and for ever
        (https://docs.nvidia.com/dl-cuda-graph/troubleshooting/process-hang.html).
        """
        from torch import distributed  # noqa: PLC0415

        distributed.destroy_process_group()


def _bytes(numbers: Tensor) -> Tensor:
    """uint8 `[bytes]` over the same memory: whatever the numbers are, every library carries bytes."""
    return numbers.view(-1).view(torch.uint8)


def device_of(kind: str, rank: int) -> torch.device:
    """A rank's device, made the one that this process computes on."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device(kind, rank)
    torch.cuda.set_device(device)
    return device


def join(rank: int, size: int, place: Path, device: torch.device, board: Board) -> TorchPeers:
    """Meet the other ranks; returns once all are there. Raises RuntimeError where some do not come.

    Args:
        place: a path in a directory of our own, where nothing is yet; the same for all ranks.
    """
    from torch import distributed  # noqa: PLC0415 (a server without peers does without)

    on_cpu = device.type == "cpu"
    stay_local(os.environ)
    store = distributed.FileStore(str(place), size)  # type: ignore[attr-defined] # it is there, and documented
    store.set_timeout(timedelta(seconds=JOIN_SECONDS))
    distributed.init_process_group(
        "gloo" if on_cpu else "nccl",
        store=store,
        rank=rank,
        world_size=size,
        timeout=MEETING,
        device_id=None if on_cpu else device,  # connects NCCL now, and not in the first step
    )
    return TorchPeers(rank, size, board)
