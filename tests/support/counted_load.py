"""A few of OpenAI's clients, pooled and with their default retries, and an account of every HTTP exchange they make.

An exchange counts as accepted once its reply has begun, or may have: then it must end whole. Everything else is either
sent away, with a 503 that says when to come back, or finds nobody listening.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any

import httpx
import openai

from patience import PATIENCE_SECONDS


class Fate(StrEnum):
    """How an exchange ended."""

    WHOLE = "whole"
    SENT_AWAY = "sent away"  # 503 or 429 with Retry-After, on a connection that closes
    UNHEARD = "unheard"  # no connection was made, so no byte was sent
    LOST = "lost"


@dataclass
class Account:
    """Counts by phase. Written by many threads."""

    phase: str = ""
    exchanges: dict[str, Counter[Fate]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    answers: Counter[str] = field(default_factory=Counter)  # by phase: requests that the client got an answer to
    failures: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, phase: str, fate: Fate, detail: str = "") -> None:
        with self._lock:
            self.exchanges.setdefault(phase, Counter())[fate] += 1
            if fate is Fate.LOST:
                self.failures.append(f"{phase}: {detail}")

    def answered(self, phase: str) -> None:
        with self._lock:
            self.answers[phase] += 1

    def failed(self, phase: str, why: str) -> None:
        with self._lock:
            self.failures.append(f"{phase}: {why}")

    def table(self) -> str:
        """One line for each phase."""
        rows = []
        for phase, fates in self.exchanges.items():
            counts = ", ".join(f"{fates[fate]} {fate}" for fate in Fate)
            seconds = self.seconds.get(phase, 0)
            rows.append(f"{phase}: {seconds:.0f} s, {self.answers[phase]} answers; exchanges: {counts}")
        return "\n".join(rows)


class _Watched(httpx.SyncByteStream):
    """A reply's body, and the account of how it ended."""

    def __init__(self, inner: Any, end: Callable[[Fate, str], None]) -> None:
        self._inner, self._end = inner, end
        self._tail, self._ended = b"", False

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._inner:
                self._tail = (self._tail + piece)[-2000:]
                yield piece
        except httpx.TransportError as error:
            self._account(Fate.LOST, repr(error))
            raise
        # A stream that ends with an error in its last event was accepted, and lost all the same.
        self._account(Fate.LOST if b'data: {"error"' in self._tail else Fate.WHOLE)

    def close(self) -> None:
        """OpenAI's client reads a stream up to its last event and not to the end of the body."""
        self._account(Fate.WHOLE if b"data: [DONE]" in self._tail else Fate.LOST, "given up by the client")
        self._inner.close()

    def _account(self, fate: Fate, detail: str = "") -> None:
        if not self._ended:
            self._ended = True
            self._end(fate, f"{detail} {self._tail.decode('utf-8', 'replace')}")


class Accountant(httpx.BaseTransport):
    """Watches every exchange of one client."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        phase = self._account.phase
        try:
            reply = self._inner.handle_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            self._account.count(phase, Fate.UNHEARD)
            raise
        except httpx.TransportError as error:
            self._account.count(phase, Fate.LOST, f"no reply: {error!r}")
            raise
        if reply.status_code == httpx.codes.OK:
            stream = _Watched(reply.stream, partial(self._account.count, phase))
            return httpx.Response(reply.status_code, headers=reply.headers, stream=stream, extensions=reply.extensions)
        polite = "retry-after" in reply.headers and reply.headers.get("connection") == "close"
        away = reply.status_code in (429, 503) and polite
        self._account.count(phase, Fate.SENT_AWAY if away else Fate.LOST, f"status {reply.status_code}")
        return reply

    def close(self) -> None:
        self._inner.close()


class CountedLoad:
    """Clients that ask again and again: half of them for streams, with a short random pause between answers."""

    def __init__(self, url: str, model: str, key: str, *, clients: int = 4, tokens: int = 16) -> None:
        self.account = Account()
        self._url, self._model, self._key, self._tokens = url, model, key, tokens
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(clients)]

    @contextmanager
    def running(self) -> Iterator[CountedLoad]:
        """The clients ask while the block runs; after it, their last answers are awaited."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(PATIENCE_SECONDS)

    def answers(self, phase: str) -> int:
        return self.account.answers[phase]

    def _run(self, number: int) -> None:
        pause = random.Random(number)
        http = httpx.Client(transport=Accountant(self.account), timeout=PATIENCE_SECONDS)
        with openai.OpenAI(base_url=f"{self._url}/v1", api_key=self._key, http_client=http) as client:
            for turn in itertools.count():
                if self._stop.wait(pause.uniform(0, 0.3)):
                    return
                phase = self.account.phase
                try:
                    self._ask(client, f"Count to ten, client {number}, turn {turn}.", stream=bool(number % 2))
                except (openai.APIError, httpx.TransportError, AssertionError) as error:
                    self.account.failed(phase, repr(error))
                else:
                    self.account.answered(phase)

    def _ask(self, client: openai.OpenAI, text: str, *, stream: bool) -> None:
        """One answer of exactly the length that was asked for."""
        ask: Any = client.chat.completions.create
        common: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": self._tokens,
            "temperature": 0,
            "extra_body": {"ignore_eos": True},
        }
        if stream:
            *_, last, counts = ask(**common, stream=True, stream_options={"include_usage": True})
        else:
            last = counts = ask(**common)
        assert last.choices[0].finish_reason == "length", last
        assert counts.usage.completion_tokens == self._tokens, counts
