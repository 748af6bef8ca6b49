"""Sends one request, and says what became of it: an `Outcome` in any case, never an exception."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from octavo_engine.bench.answer import Answer, refusal
from octavo_engine.bench.outcome import Failure, Outcome
from octavo_engine.bench.wire import Connections, Cut, Unreadable
from octavo_engine.errors import OctavoError

Json = dict[str, Any]
OWN_LIMITS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)


class NotAnswered(OctavoError):
    """The server did not answer what a test needs to know before it begins; the message says what to check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request, ready to send."""

    path: str
    body: Json
    turn: int
    prompt_tokens: int | None  # wanted
    output_tokens: int  # wanted
    keep_text: bool


class Client:
    """Asks one server. `record` gets the outcome of each request as soon as there is one."""

    def __init__(self, connections: Connections, record: Callable[[Outcome], None]) -> None:
        self._connections = connections
        self._record = record
        self.began = 0.0

    async def ask(self, question: Question, due: float | None = None) -> Answer | None:
        """Send, read to the end, record; returns the answer if it is whole. Cancelled, it records that.

        `due` counts from `began`, in seconds, as the outcome's times do.
        """
        answer = Answer(keep_text=question.keep_text)
        body = json.dumps(question.body).encode()
        sent = time.monotonic()
        try:
            await self._connections.send("POST", question.path, answer, body)
            problem = answer.problem()
        except asyncio.CancelledError:
            self._record(self._outcome(question, answer, sent, due, (Failure.INTERRUPTED, "")))
            raise
        except (OSError, Cut, Unreadable) as error:
            problem = answer.failure or failure_of(error)
        self._record(self._outcome(question, answer, sent, due, problem))
        return answer if problem is None else None

    def _outcome(
        self, question: Question, answer: Answer, sent: float, due: float | None, problem: tuple[Failure, str] | None
    ) -> Outcome:
        arrivals = answer.arrivals
        counted = answer.count("completion_tokens")
        failure, detail = problem or (None, "")
        return Outcome(
            due=sent - self.began if due is None else due,
            sent=sent - self.began,
            turn=question.turn,
            first_token=arrivals[0] - sent if arrivals else None,
            last_token=arrivals[-1] - sent if arrivals else None,
            gaps=tuple(after - before for before, after in pairwise(arrivals)),
            wanted_prompt_tokens=question.prompt_tokens,
            wanted_output_tokens=question.output_tokens,
            prompt_tokens=answer.count("prompt_tokens"),
            cached_tokens=answer.count("prompt_tokens_details", "cached_tokens"),
            output_tokens=len(arrivals) if counted is None else counted,
            failure=failure,
            detail=detail,
        )


def failure_of(error: Exception) -> tuple[Failure, str]:
    """What an error of the network means."""
    said = " ".join(str(error).split())
    if isinstance(error, TimeoutError) and not error.errno:  # of the test: one of the network has a number
        return Failure.TIMEOUT, "it took longer than --timeout"
    return _kind(error, said), said


def _kind(error: Exception, said: str) -> Failure:
    if isinstance(error, Unreadable):
        return Failure.MALFORMED
    # asyncio tells of several addresses that all refused in one error without a number
    if isinstance(error, ConnectionRefusedError) or f"[Errno {errno.ECONNREFUSED}]" in said:
        return Failure.REFUSED
    if isinstance(error, Cut | ConnectionError):
        return Failure.CUT
    own = isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno in OWN_LIMITS
    return Failure.CLIENT if own else Failure.UNREACHABLE


class _Whole:
    """Receives a reply that is read at once."""

    def __init__(self) -> None:
        self.status = 0
        self.data = b""

    def head(self, status: int) -> None:
        self.status = status

    def body(self, data: bytes, at: float) -> None:  # noqa: ARG002 (a Receiver)
        self.data += data


async def fetch(connections: Connections, method: str, path: str, body: Json | None = None) -> bytes:
    """The body of a plain reply with status 200; raises NotAnswered."""
    whole = _Whole()
    sent = None if body is None else json.dumps(body).encode()
    try:
        await connections.send(method, path, whole, sent)
    except (OSError, Cut, Unreadable) as error:
        failure, said = failure_of(error)
        raise NotAnswered(f"{method} {connections.url}{path}: {failure}: {said}") from error
    if whole.status != 200:
        failure, said = refusal(whole.status, whole.data)
        raise NotAnswered(f"{method} {connections.url}{path}: {failure}: {said}")
    return whole.data


async def fetch_json(connections: Connections, method: str, path: str, body: Json | None = None) -> Json:
    """The same where it is a JSON object."""
    try:
        document = json.loads(await fetch(connections, method, path, body))
    except ValueError as error:
        raise NotAnswered(f"{method} {connections.url}{path}: its answer is no JSON") from error
    if not isinstance(document, dict):
        raise NotAnswered(f"{method} {connections.url}{path}: its answer is no JSON object")
    return document
