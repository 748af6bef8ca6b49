"""A rank other than the first: `python -m octavo_engine.parallel.worker SOCKET BOARD`, started by rank 0 alone.

It loads its shard, and then computes each step that it is told of, in the order in which it is told. It keeps nothing
of a step but keys and values, and decodes that it was told to record. When rank 0 is gone, it goes.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from octavo_engine.errors import OctavoError, StartupError
from octavo_engine.parallel.assignment import Assignment
from octavo_engine.parallel.board import Board
from octavo_engine.parallel.channel import SHOW_STACKS, Channel, Kind

if TYPE_CHECKING:
    from octavo_engine.parallel.following import Follower

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 0.5
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def main(arguments: Sequence[str]) -> int:
    """Follow rank 0 to its end; returns the exit code."""
    # A signal for the whole group or container is rank 0's to obey: it drains, and needs us for that.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    faulthandler.register(SHOW_STACKS, sys.stderr)  # in C: it is heard while a library waits, too
    _die_with_parent()
    channel, board = Channel(socket.socket(fileno=int(arguments[0]))), int(arguments[1])
    try:
        return _work(channel, board)
    except StartupError as error:
        return _last_words(channel, str(error), error.reason)
    except BaseException as error:
        log.exception("this rank cannot go on")
        known = str(error) if isinstance(error, OctavoError) else type(error).__name__
        return _last_words(channel, f"failed: {known}; the log has the cause")


def _work(channel: Channel, descriptor: int) -> int:
    """From the assignment to rank 0's end."""
    message = channel.receive()
    if message is None:
        return 0
    assignment = Assignment.from_words(message.words)
    _log_as(assignment)
    gc.disable()
    from octavo_engine.parallel.shard_engine import ShardEngine  # noqa: PLC0415 (loads torch)

    channel.say({"here": assignment.rank})
    engine = ShardEngine.load(assignment, Board(descriptor, assignment.size), LoadingNews(channel))
    channel.say({"loaded": engine.weight_bytes, "blocks": engine.blocks()})
    if (message := channel.receive()) is None:
        return 0
    follower = engine.follower(message.words["blocks"])
    gc.freeze()
    gc.enable()
    channel.say({"ready": assignment.rank})
    follow(channel, follower)
    follower.close()
    engine.leave()
    return 0


def follow(channel: Channel, follower: Follower) -> None:
    """Do all that rank 0 says, in its order, until it says no more."""
    while (message := channel.receive()) is not None:
        if message.kind is Kind.STEP:
            follower.step(message.body)
        elif answer := follower.obey(message.words):
            channel.say(answer)


class LoadingNews:
    """Tells rank 0 how the loading goes, not too often."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._next = channel, 0.0

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` bytes are read."""
        if time.monotonic() >= self._next or done == total:
            self._next = time.monotonic() + PROGRESS_SECONDS
            self._channel.say({"progress": [done, total]})


def _die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, which is rank 0's main thread: even in a
    meeting that rank 0 never comes to, or stopped. Should it be gone by now, the channel says so."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _last_words(channel: Channel, words: str, reason: str = "") -> int:
    """Say why we end, and do so at once: the end of a library that waits for others may never come."""
    with suppress(OSError):  # rank 0 may be gone before us
        channel.say({"fault": words, "reason": reason})
    logging.shutdown()
    os._exit(1)


def _log_as(assignment: Assignment) -> None:
    """Lines like rank 0's, with our number."""
    line = f"%(asctime)s %(levelname)s rank {assignment.rank} %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=line, stream=sys.stderr)
    logging.getLogger("octavo_engine").setLevel(assignment.log_level)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
