"""Rank 0's side of the others: it starts them, hears from them, tells them each step, and notices when one is lost."""

from __future__ import annotations

import logging
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from octavo_engine import errors
from octavo_engine.errors import EngineDead, OctavoError, StartupError
from octavo_engine.parallel import wire
from octavo_engine.parallel.assignment import Assignment
from octavo_engine.parallel.board import Board, late
from octavo_engine.parallel.channel import SHOW_STACKS, Channel, Kind
from octavo_engine.runtime.inputs import StepPlan

log = logging.getLogger(__name__)

END_SECONDS = 5.0  # for a worker to end by itself
EXIT_SECONDS = 2.0  # between a worker's last word and its exit code

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Worker:
    """One other rank: its process, and the line to it."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: Channel

    @classmethod
    def start(cls, assignment: Assignment, board: Board) -> Self:
        """Start it; it answers when it can. Its output goes where ours does."""
        ours, theirs = Channel.pair()
        descriptors = theirs.fileno(), board.descriptor
        command = [sys.executable, "-P", "-m", "octavo_engine.parallel.worker", *map(str, descriptors)]
        with theirs:
            try:
                process = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL)
            except OSError:
                ours.close()
                raise
        with suppress(OSError):  # it has ended already: who listens to it says how
            ours.say(assignment.words)
        return cls(assignment.rank, process, ours)

    def kill(self) -> None:
        """End it at once, and the line to it."""
        self.process.kill()
        self.process.wait()
        self.channel.close()


class Team:
    """All other ranks. The first that is lost is the end of all: `fault` says which and why, in words for people."""

    def __init__(self, workers: Sequence[Worker], board: Board) -> None:
        self._workers, self._board = workers, board
        self._news = threading.Condition()
        self._said: dict[str, dict[int, dict[str, Any]]] = {}  # what each rank said last, by the first word
        self._lost: OctavoError | None = None
        self._on_fault: Callable[[str], None] = lambda _: None
        self._ending = False
        self._thread = threading.Thread(target=self._listen, name="octavo-ranks", daemon=True)
        self._thread.start()

    @classmethod
    def start(cls, assignments: Sequence[Assignment], board: Board) -> Self:
        """Start a worker for each; returns at once. Raises EngineDead where one cannot be, and leaves none."""
        workers: list[Worker] = []
        try:
            for assignment in assignments:
                workers.append(Worker.start(assignment, board))  # noqa: PERF401 - those that run are ended below
        except OSError as error:
            for worker in workers:
                worker.kill()
            raise EngineDead(f"rank {len(workers) + 1} cannot be started: {error.strerror}") from error
        return cls(workers, board)

    @property
    def size(self) -> int:
        """Ranks in all, rank 0 among them."""
        return len(self._workers) + 1

    @property
    def fault(self) -> str | None:
        """Why the ranks cannot go on; None while they can."""
        return None if self._lost is None else str(self._lost)

    # -- telling ---------------------------------------------------------------------------------------------------

    def say(self, **words: object) -> None:
        """Tell all workers; raises EngineDead when one is lost."""
        for worker in self._workers:
            self._send(worker, lambda channel: channel.say(words))

    def tell(self, plan: StepPlan) -> None:
        """Have all workers compute a step; raises EngineDead when one is lost."""
        step = wire.encode(plan)
        for worker in self._workers:
            self._send(worker, lambda channel: channel.send(Kind.STEP, step))

    def _send(self, worker: Worker, send: Callable[[Channel], None]) -> None:
        try:
            send(worker.channel)
        except OSError:
            raise self.broken(f"rank {worker.rank} does not listen any more") from None

    # -- hearing ---------------------------------------------------------------------------------------------------

    def wait_for(self, word: str, on_news: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """What each worker says with that word, by rank, once all have; raises the StartupError or the EngineDead of
        one that is lost. Until then `on_news` is called, from this thread, whenever one says something."""
        with self._news:
            while self._lost is None and len(self._said.get(word, {})) < len(self._workers):
                on_news()
                self._news.wait()
            if self._lost is not None:
                raise self._lost
            return [self._said[word][worker.rank] for worker in self._workers]

    def unless_lost(self, call: Callable[[], Result], seconds: float) -> Result:
        """What `call` returns or raises; raises the StartupError or EngineDead of a rank that is lost before, or
        TimeoutError after so many seconds.

        Then `call` is left behind in its thread: it may wait for that rank, and for ever. This thread hears signals
        meanwhile, which a library that waits does not.
        """
        outcome: Future[Result] = Future()

        def run() -> None:
            try:
                outcome.set_result(call())
            except BaseException as error:
                outcome.set_exception(error)
            with self._news:
                self._news.notify_all()

        threading.Thread(target=run, name="octavo-meeting", daemon=True).start()
        with self._news:
            self._news.wait_for(lambda: outcome.done() or self._lost is not None, seconds)
            if not outcome.done() and self._lost is not None:  # after it has met us, perhaps: then we have met it soon
                self._news.wait_for(outcome.done, EXIT_SECONDS)
            if not outcome.done():
                raise self._lost or TimeoutError(f"not within {seconds:g} s")
        return outcome.result()

    def latest(self, word: str) -> list[dict[str, Any]]:
        """What those workers said with that word that have said it."""
        return list(self._said.get(word, {}).values())

    def on_fault(self, call: Callable[[str], None]) -> None:
        """Call with the fault's words, from a thread of the team's, as soon as a rank is lost: at once if it is."""
        with self._news:
            self._on_fault, fault = call, self.fault
        if fault is not None:
            call(fault)

    def broken(self, otherwise: str) -> EngineDead:
        """Why a step of ours failed: the rank that was lost, if one is soon known to be, or else those words."""
        with self._news:
            self._news.wait_for(lambda: self._lost is not None, EXIT_SECONDS + 0.5)
        return EngineDead(self.fault or otherwise)

    def awaited(self) -> str:
        """Who keeps the others waiting, in words to add to a complaint; empty when nobody does."""
        ranks = late(self._board.counts)
        if not ranks:
            return ""
        verb = "is" if len(ranks) == 1 else "are"
        names, meeting = ", ".join(map(str, ranks)), self._board.present.words
        return f"; the others wait in {meeting} for rank {names} of {self.size}, which {verb} late"

    def show_stacks(self) -> None:
        """Have each worker that still runs write to the log where all its threads are."""
        for worker in self._workers:
            with suppress(ProcessLookupError):
                worker.process.send_signal(SHOW_STACKS)

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.channel.descriptor, selectors.EVENT_READ, worker)
            while selector.get_map():
                for key, _ in selector.select():
                    if not self._hear(key.data):
                        selector.unregister(key.fd)

    def _hear(self, worker: Worker) -> bool:
        """Take one message; False when there will be no other."""
        message = worker.channel.receive()
        if message is None or message.kind is not Kind.WORDS:
            self._lose(worker, _exit_words(worker))
            return False
        words = message.words
        if "fault" in words:
            self._lose(worker, words["fault"], words.get("reason", ""))
        with self._news:
            for word in words:
                self._said.setdefault(word, {})[worker.rank] = words
            self._news.notify_all()
        return True

    def _lose(self, worker: Worker, words: str, reason: str = "") -> None:
        """A worker is lost, unless all were told to end; only the first one is the cause."""
        with self._news:
            if self._ending or self._lost is not None:
                return
            self._lost = _error(reason, f"rank {worker.rank} of {self.size} {words}", words)
            call, fault = self._on_fault, str(self._lost)
            self._news.notify_all()
        log.error("%s", fault)
        call(fault)

    # -- ending ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Have all workers end when they have done what they were told. However one ends now, it is not lost."""
        with self._news:
            self._ending = True
        for worker in self._workers:
            worker.channel.end()

    def close(self) -> None:
        """Have all workers end, and wait for it; those that do not are killed."""
        self.end()
        deadline = time.monotonic() + END_SECONDS
        for worker in self._workers:
            try:
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("rank %d does not end: killed", worker.rank)
                worker.process.kill()
                worker.process.wait()
        self._thread.join()
        for worker in self._workers:
            worker.channel.close()


def _error(reason: str, told: str, words: str) -> OctavoError:
    """A worker's own StartupError, as if it were ours; else the end of the engine."""
    kind = getattr(errors, reason, None)
    return kind(words) if isinstance(kind, type) and issubclass(kind, StartupError) else EngineDead(told)


def _exit_words(worker: Worker) -> str:
    """How a worker has ended that said nothing."""
    try:
        code = worker.process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return "does not speak to us any more"
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL): by hand, or for want of memory"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"has ended with {code}: its last lines in the log say why"
