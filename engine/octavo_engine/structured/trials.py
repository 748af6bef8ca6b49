"""A form is tried in a process of its own before the server compiles it: one that does not end there is killed, and one
that brings the grammar engine down brings nothing else down.

What has passed once takes the server as long as it took there, at most the limit. See `trial_process` for that side.
"""

from __future__ import annotations

import json
import logging
import queue
import socket
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NamedTuple, Self

from octavo_engine.errors import FormTooComplex, RequestError
from octavo_engine.structured.spec import Spec
from octavo_engine.structured.vocabulary import Tokens

log = logging.getLogger(__name__)

START_SECONDS = 60.0  # for a process to read the vocabulary, on a machine that is busy loading a model
PATIENCE = 5  # times the limit, on the wall's clock: a process that does not run is given up, too
MEMORY = 1 << 30  # bytes of one process, of which the vocabulary takes some tens of millions
HOPELESS_KEPT = 64  # forms that met a limit, and are not tried again
COMMAND = ("-P", "-m", "octavo_engine.structured.trial_process")  # of Python


class Assignment(NamedTuple):
    """What a process is told first: the vocabulary, and that a form may take `seconds` of processor time and the
    process `memory` bytes."""

    tokens: list[bytes]
    special_ids: frozenset[int]
    end_ids: list[int]
    seconds: float
    memory: int

    def words(self) -> bytes:
        """As a message."""
        spelled = [token.decode("latin-1") for token in self.tokens]
        return json.dumps([spelled, sorted(self.special_ids), *self[2:]]).encode()

    @classmethod
    def from_words(cls, message: bytes) -> Self:
        """Back from it."""
        spelled, special_ids, *rest = json.loads(message)
        return cls([token.encode("latin-1") for token in spelled], frozenset(special_ids), *rest)


class TrialProcess:
    """One process, and the line to it. Used by one thread at a time."""

    def __init__(self, process: subprocess.Popen[bytes], line: Connection) -> None:
        self._process = process
        self._line = line

    @classmethod
    def start(cls, assignment: Assignment) -> Self:
        """Start one; it answers when it can."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *COMMAND, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # the last words of the grammar engine hold what a client sent
            )
        made = cls(process, Connection(ours.detach()))
        with suppress(OSError):  # it has ended already: who waits for its answer learns it
            made._line.send_bytes(assignment.words())
        return made

    def answer(self, seconds: float) -> dict[str, str | float] | None:
        """Its next message; None, and it is no more, if there is none in that time."""
        try:
            if self._line.poll(seconds):
                told: dict[str, str | float] = json.loads(self._line.recv_bytes())
                return told
        except (EOFError, OSError):
            pass
        self.kill()
        return None

    def ask(self, spec: Spec) -> None:
        """Have a form tried; `answer` tells what came of it."""
        with suppress(OSError):
            self._line.send_bytes(json.dumps({"kind": spec.kind, "text": spec.text, "param": spec.param}).encode())

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()
        self._line.close()


class Trials:
    """Tries forms, as many at once as it has places; safe from any thread.

    seconds: processor time that a form may take. A process is started when a place first needs one.
    """

    def __init__(self, tokenizer: Tokens, end_ids: Sequence[int], *, seconds: float, places: int = 1) -> None:
        self._tokenizer = tokenizer
        self._end_ids = list(end_ids)
        self._seconds = seconds
        self._places: queue.LifoQueue[TrialProcess | None] = queue.LifoQueue()  # the one used last is used next
        for _ in range(places):
            self._places.put(None)
        self._hopeless: OrderedDict[Spec, None] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False

    def check(self, spec: Spec) -> float:
        """Seconds that a form takes to compile. Raises RequestError if it cannot be, FormTooComplex where it meets a
        limit."""
        with self._lock:
            if spec in self._hopeless:
                raise self._too_hard(spec)
        process = self._places.get()
        try:
            process = process or self._started()
            process.ask(spec)
            told = process.answer(self._seconds * PATIENCE)
            if told is None:
                self._give_up(spec)
                process = None
                process = None if self._closed else self._started()  # now, while nobody waits for it
        finally:
            self._places.put(process)
        if told is None:
            raise self._too_hard(spec)
        if "too_complex" in told:
            raise FormTooComplex(str(told["too_complex"]), param=spec.param)
        if "refused" in told:
            raise RequestError(str(told["refused"]), param=spec.param)
        return float(told["seconds"])

    def prepare(self) -> None:
        """Have one place ready for the first form."""
        process = self._places.get()
        try:
            process = process or self._started()
        finally:
            self._places.put(process)

    def _started(self) -> TrialProcess:
        source = self._tokenizer
        tokens = [source.token_bytes(index) for index in range(source.vocab_size)]
        process = TrialProcess.start(Assignment(tokens, source.special_ids, self._end_ids, self._seconds, MEMORY))
        if process.answer(START_SECONDS) is None:
            raise RuntimeError("the process in which forms are tried does not start")
        return process

    def _give_up(self, spec: Spec) -> None:
        log.warning("%s: trying a form has ended its process: it met the limit of time or memory", spec.param)
        with self._lock:
            self._hopeless[spec] = None
            while len(self._hopeless) > HOPELESS_KEPT:
                self._hopeless.popitem(last=False)

    def _too_hard(self, spec: Spec) -> FormTooComplex:
        limits = f"{self._seconds:g} s or {MEMORY >> 20} MiB"
        message = f"{spec.param}: this form takes more than {limits} to compile; make it simpler"
        return FormTooComplex(message, param=spec.param)

    def close(self) -> None:
        """End the processes that nobody uses; the others end when they find nobody to answer to."""
        self._closed = True
        with suppress(queue.Empty):
            while True:
                if (process := self._places.get_nowait()) is not None:
                    process.kill()
