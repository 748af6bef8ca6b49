"""Runs stages as processes, side by side where they may, and passes on what they print, line by line."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from stages import order, reading
from stages.order import State
from stages.plan import CHECKOUT, Stage

_LAST_WORDS_SECONDS = 5.0
"""How long output is still read after the end: a process that was left behind may hold it open."""
# A thread that waits for its team's others soon sleeps, and leaves the processor to them: where several tests compute,
# it would mostly wait for one that another test's threads keep from its processor. 2 to 20 times as fast then.
_SHORT_WAITS = {"GOMP_SPINCOUNT": "1000"}
_LESS = ("nice", "-n", "5")
"""A third of what an equal would get: it goes on, and deadlines of its own hold."""


@dataclass(frozen=True)
class Outcome:
    """What became of a stage: its state, how long it took and how many seconds of processors, and where it reported,
    each time that it ran."""

    stage: Stage
    state: State
    seconds: float = 0.0
    processor_seconds: float = 0.0
    reports: tuple[Path, ...] = ()


class Run:
    """One run of some stages. `folder` is where those that are tests leave their reports."""

    def __init__(self, stages: Sequence[Stage], folder: Path) -> None:
        self._stages, self._folder = stages, folder
        self._outcomes = {stage.name: Outcome(stage, State.WAITING) for stage in stages}
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._ended: queue.Queue[Outcome] = queue.Queue()
        self._width = max(len(stage.name) for stage in stages)

    def outcomes(self) -> list[Outcome]:
        """Of every stage, in the order given."""
        return list(self._outcomes.values())

    @property
    def passed(self) -> bool:
        """Whether every stage has."""
        return all(outcome.state is State.PASSED for outcome in self.outcomes())

    def go(self) -> bool:
        """Begins what may begin until nothing runs any more; True when every stage has passed."""
        try:
            self._begin()
            while self._running:
                self._end(self._ended.get())
                self._begin()
        finally:
            self._stop()
        return self.passed

    def _begin(self) -> None:
        states = {name: outcome.state for name, outcome in self._outcomes.items()}
        for stage in order.to_begin(self._stages, states):
            self._start(stage)

    def _start(self, stage: Stage) -> None:
        before = self._outcomes[stage.name]
        command = [*stage.command, *self._flags(before)]
        if order.gives_way(stage, self._stages):
            command = [*_LESS, *command]
        beside = f", beside {', '.join(self._running)}" if self._running else ""
        self._say(stage, f"begins{beside}")
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=os.environ | _SHORT_WAITS,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._running[stage.name] = process
        reports = (*before.reports, self._report(before)) if stage.tests else ()
        begun = replace(before, state=State.RUNNING, reports=reports)
        self._outcomes[stage.name] = begun
        threading.Thread(target=self._attend, args=(begun, process), daemon=True).start()

    def _report(self, before: Outcome) -> Path:
        return self._folder / f"{before.stage.name}-{len(before.reports)}.xml"

    def _flags(self, before: Outcome) -> Sequence[str]:
        """Of pytest: where it reports, and what remembers what has failed until it is run again."""
        if not before.stage.tests:
            return ()
        kept = (f"--junit-xml={self._report(before)}", "-o", f"cache_dir={self._folder / before.stage.name}")
        again = ("--last-failed", "--last-failed-no-failures=none")
        return (*kept, *again) if before.state is State.DOUBTED else kept

    def _attend(self, begun: Outcome, process: subprocess.Popen[str]) -> None:
        """From begin to end, in a thread of the stage's own."""
        began = time.monotonic()
        assert process.stdout is not None
        reader = threading.Thread(target=self._pass_on, args=(begun.stage, process.stdout), daemon=True)
        reader.start()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        reader.join(_LAST_WORDS_SECONDS)
        failed = reading.read_all(begun.reports).failed
        self._ended.put(
            replace(
                begun,
                state=State.after(process.returncode, len(failed), again=len(begun.reports) > 1),
                seconds=begun.seconds + time.monotonic() - began,
                processor_seconds=begun.processor_seconds + used.ru_utime + used.ru_stime,
            )
        )

    def _pass_on(self, stage: Stage, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self._say(stage, line.rstrip("\n"))

    def _end(self, outcome: Outcome) -> None:
        self._outcomes[outcome.stage.name] = outcome
        del self._running[outcome.stage.name]
        self._say(outcome.stage, f"{outcome.state.value} after {outcome.seconds:.0f} s")

    def _say(self, stage: Stage, text: str) -> None:
        line = f"{stage.name:<{self._width}} | {text}".rstrip()
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def _stop(self) -> None:
        """Where the run was interrupted: its stages end before anything is taken from under them."""
        for process in self._running.values():
            process.terminate()
        while self._running:
            self._end(self._ended.get())


@contextmanager
def undoing(run: Run, *, there: bool) -> Iterator[None]:
    """Undoes at the end what the stages have made; with `there`, it was there before and stays, and is looked at."""
    try:
        yield
    finally:
        for outcome in run.outcomes():
            last = outcome.stage.look if there else outcome.stage.undo
            if last and not (there and run.passed):
                subprocess.run(last, cwd=CHECKOUT, check=False)
