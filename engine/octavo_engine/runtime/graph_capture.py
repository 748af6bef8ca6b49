"""When graphs are recorded: after the server is ready, by the step thread, one size at a time. No tensors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Self

from octavo_engine.errors import EngineDead
from octavo_engine.pulse import Pulse

log = logging.getLogger(__name__)

# While requests run, a recording makes them wait. It comes so many times its own duration after the one before, and so
# takes at most a twentieth of the time.
PAUSES = 19


class NotRecorded(Exception):
    """A device has computed what it was given, but could not record it; it can go on. The words say why, in a line."""

    @classmethod
    def because(cls, error: Exception) -> Self:
        """For that reason."""
        return cls(f"{type(error).__name__}: {error}".splitlines()[0])


class GraphCapture:
    """An errand for the step thread: each call records one size, if it is time for that.

    The largest first. All share one pool of memory, in which the smaller ones find room that the largest has left
    behind; and if memory is short, that shows at once.

    `record` raises EngineDead where no step can be computed any more; anything else only means that there is no graph.
    """

    def __init__(
        self,
        record: Callable[[int], None],
        sizes: Sequence[int],
        *,
        pulse: Pulse,
        on_phase: Callable[[str, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._record, self._sizes = record, sorted(sizes)
        self._left = list(self._sizes)
        self._pulse, self._on_phase, self._clock = pulse, on_phase, clock
        self._spent = 0.0  # seconds of all recordings
        self._not_before = 0.0

    def __call__(self, idle: bool) -> bool:
        """Record a size, at once if nobody waits; False when there is nothing more to do. Raises EngineDead."""
        if not idle and self._clock() < self._not_before:
            return True
        size = self._left.pop()
        began = self._clock()
        try:
            with self._pulse.computing(f"the recording of a CUDA graph of {size} sequences"):
                self._record(size)
        except EngineDead:
            raise
        except Exception as error:
            self._give_up(size, error)
            return False
        ended = self._clock()
        self._spent += ended - began
        self._not_before = ended + PAUSES * (ended - began)
        log.debug("the CUDA graph of %d sequences: %.2f s", size, ended - began)
        if not self._left:
            self._finish()
        return bool(self._left)

    def _finish(self) -> None:
        self._on_phase("cuda_graphs", self._spent)
        sizes = ", ".join(map(str, self._sizes))
        log.info("decodes are replayed from CUDA graphs from now on, in batches padded to %s", sizes)

    def _give_up(self, size: int, error: Exception) -> None:
        self._pulse.rest()
        reason = error if isinstance(error, NotRecorded) else NotRecorded.because(error)
        larger = [str(other) for other in self._sizes if other > size]
        but = f", but those padded to {', '.join(larger)}," if larger else ""
        log.warning(
            "the CUDA graph of %d sequences cannot be recorded (%s): decodes%s are launched kernel by kernel, as with"
            " --enforce-eager, which is slower where the device waits for the host",
            size,
            reason,
            but,
        )
