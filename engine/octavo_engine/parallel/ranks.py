"""The other ranks as rank 0's start sees them: from their processes to a cache in each of them, and to their end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from octavo_engine.errors import InvalidConfiguration
from octavo_engine.model.tensors.sharding import shard_of, unevenness
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.model.weights.joined import Split
from octavo_engine.parallel.assignment import Assignment
from octavo_engine.parallel.board import Board
from octavo_engine.parallel.peers import JOIN_SECONDS, TorchPeers, device_of, join
from octavo_engine.parallel.team import Team

log = logging.getLogger(__name__)

PART_SECONDS = 5.0
UNSEEN = "; no rank is late: what they wait for is a device, what connects devices, or what this process is at"

Progress = Callable[[int, int], None]


class SharedProgress:
    """Reports what all ranks have read, of this one and of the others."""

    def __init__(self, report: Progress, team: Team | None) -> None:
        self._report, self._team = report, team
        self._own = (0, 0)

    def __call__(self, done: int, total: int) -> None:
        """This rank has read `done` of its `total` bytes."""
        self._own = done, total
        self.report()

    def report(self) -> None:
        """Say where all are."""
        others = [] if self._team is None else [words["progress"] for words in self._team.latest("progress")]
        done, total = map(sum, zip(self._own, *others, strict=True))
        self._report(done, total)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What all ranks but the first hold."""

    weight_bytes: int
    blocks: int | None  # of KV that the fullest of their devices has room for; None on a host, where rank 0 has counted


@dataclass(frozen=True, slots=True)
class Ranks:
    """All ranks of a model but the first, which is this process, and what it shares with them."""

    team: Team
    peers: TorchPeers
    split: Split  # what of the model is ours
    meeting: TemporaryDirectory[str]
    on_devices: bool  # each has one that computes while its process goes on

    @classmethod
    def start(cls, own: Assignment, spec: ModelSpec) -> Ranks:
        """Start the others and meet them. They begin to load; so should we.

        Args:
            own: that of rank 0; the others' are the same.

        Raises InvalidConfiguration where there are not enough devices, and EngineDead when one ends meanwhile.
        """
        check_devices(own.device, own.size)
        if (words := unevenness(spec, own.size)) is not None:
            log.warning("%s", words)
        device = device_of(own.device, 0)
        meeting, board = TemporaryDirectory(prefix="octavo-ranks-"), Board.create(own.size)
        place = Path(meeting.name) / "store"
        with ExitStack() as failed:
            failed.callback(meeting.cleanup)
            failed.callback(board.close)
            team = Team.start([replace(own, rank=rank, place=str(place)) for rank in range(1, own.size)], board)
            failed.callback(team.close)
            team.wait_for("here")
            peers = meet(team, lambda: join(0, own.size, place, device, board))
            failed.pop_all()
        log.info("%d ranks have met", own.size)
        return cls(team, peers, Split(shard_of(spec, 0, own.size), peers), meeting, on_devices=device.type != "cpu")

    def loaded(self, progress: SharedProgress) -> Loaded:
        """What the others have, once all have loaded. Raises StartupError or EngineDead, whatever kept one from it."""
        told = self.team.wait_for("loaded", progress.report)
        blocks = [words["blocks"] for words in told]
        return Loaded(sum(words["loaded"] for words in told), None if None in blocks else min(blocks))

    def allocate(self, blocks: int) -> None:
        """Have each make its part of the cache; returns when they are ready for steps. Raises as `loaded`."""
        self.team.say(blocks=blocks)
        self.team.wait_for("ready")

    def awaited(self) -> str:
        """Who keeps the others waiting, in words to add to a complaint; empty when nobody is known to.

        A process is late that has not come to a meeting. A device is not seen: where one hangs in its work, all
        processes have come, and their devices wait for each other.
        """
        return self.team.awaited() or (UNSEEN if self.on_devices else "")

    def close(self) -> None:
        """End the others, and what is shared with them. What was recorded of meetings is forgotten by then.

        NCCL parts when all ranks do, so we part while they end, and not after that; and from a lost one not at all.
        """
        self.team.end()
        if self.team.fault is None or not self.on_devices:
            leave_within(self.peers.leave, PART_SECONDS)
        self.team.close()
        self.peers.board.close()
        self.meeting.cleanup()


def leave_within(leave: Callable[[], None], seconds: float) -> None:
    """Part from the others; where one of them never comes to that, it is left behind in its thread."""
    parting = threading.Thread(target=leave, name="octavo-parting", daemon=True)
    parting.start()
    parting.join(seconds)
    if parting.is_alive():
        log.warning("the other ranks do not part within %g s: left as they are", seconds)


def meet(team: Team, join_others: Callable[[], TorchPeers], seconds: float = JOIN_SECONDS) -> TorchPeers:
    """Our place among the ranks; raises what ended one before it has met us, or EngineDead where they do not find each
    other."""
    try:
        return team.unless_lost(join_others, seconds)
    except (RuntimeError, TimeoutError) as error:
        raise team.broken(f"the ranks did not find each other ({error})") from error


def check_devices(kind: str, size: int) -> None:
    """Raise InvalidConfiguration unless each rank has a device of its own; on a processor they share it."""
    if kind != "cpu" and (there := torch.cuda.device_count()) < size:
        raise InvalidConfiguration(
            f"--tensor-parallel-size is {size}, but there are {there} CUDA devices here; lower it to {there}"
        )
