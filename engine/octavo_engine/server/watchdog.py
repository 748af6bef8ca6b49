"""Notices that the step thread is lost. It looks from a thread of its own and takes no lock, so that neither a full
queue nor slow HTTP nor the fault itself keeps it from looking.
"""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo_engine.pulse import Beat, Phase

LOOK_SECONDS = 1.0
STDERR = 2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """For how many seconds a beat may stay the same, by phase."""

    decode: float
    prefill: float
    warm_up: float

    def of(self, phase: Phase) -> float:
        """The limit of `phase`."""
        match phase:
            case Phase.IDLE | Phase.DECODE:
                return self.decode
            case Phase.PREFILL:
                return self.prefill
            case Phase.WARM_UP:
                return self.warm_up


class Watch:
    """The judgement alone: it is shown beats, and how long each was looked at."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._beat: Beat | None = None
        self._seconds = 0.0

    def look(self, beat: Beat, seconds: float) -> str | None:
        """The fault in words, once the same beat has been seen for longer than its phase may last."""
        if beat is not self._beat:
            self._beat, self._seconds = beat, 0.0
            return None
        self._seconds += seconds
        limit = self._limits.of(beat.phase)
        if self._seconds <= limit:
            return None
        return f"{_fault(beat, self._seconds)}; the limit is {limit:g} s"


def _fault(beat: Beat, seconds: float) -> str:
    """What has not happened for so long. A thread that waits for a device does what it should: the device does not."""
    if beat.launched:
        return f"the device hangs: {beat.doing} was launched, and has not ended for {seconds:.1f} s"
    first = ", the first of its kind" if beat.phase is Phase.WARM_UP else ""
    where = f"in {beat.doing}{first}" if beat.doing else "between two steps"
    return f"the step thread has not moved for {seconds:.1f} s {where}"


class Watchdog:
    """Calls `on_fault`, once, from its own thread, when `beat` stays the same for too long.

    Should Python itself hang, so that this thread does not run either, a timer in C writes all stacks and ends the
    process with 1.
    """

    def __init__(self, beat: Callable[[], Beat], limits: Limits, on_fault: Callable[[str], None]) -> None:
        self._beat = beat
        self._watch = Watch(limits)
        self._on_fault = on_fault
        self._interval = min(LOOK_SECONDS, limits.decode / 10)
        self._python_limit = limits.prefill
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="octavo-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._arm()  # by now, not after the first wait: a hang in between would last for ever
        self._thread.start()

    def stop(self) -> None:
        """Look no more: the step thread is going to end on purpose."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stopped.wait(self._interval):
            self._arm()
            now = time.monotonic()
            # Time in which this thread did not run either (the process was suspended or throttled) proves nothing.
            fault = self._watch.look(self._beat(), min(now - before, 2 * self._interval))
            before = now
            if fault is not None:
                self._on_fault(fault)
                return

    def _arm(self) -> None:
        """Set the timer in C anew."""
        faulthandler.dump_traceback_later(self._python_limit, exit=True, file=STDERR)
