"""One line for each HTTP request, when it is over: who asked, what became of it, how long it took. No content, no keys.

As JSON on standard output, by a thread of its own, or as text in the ordinary log. A `/health` that is well is not
told: balancers ask each second.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from octavo_engine.history.lines import LINES_WAITING, Lines
from octavo_engine.server.exchange import Exchange

log = logging.getLogger("octavo.access")

Json = dict[str, Any]
Stamped = tuple[float, Json]
"""When it ended, in Unix seconds, and the rest of its line."""


def facts(exchange: Exchange, model: str) -> Json:
    """The line's fields but its time. Those of a request that never became one of the engine's are None."""
    asked = bool(exchange.requests)
    return {
        "id": exchange.id,
        "x_request_id": exchange.x_request_id,
        "trace_id": exchange.trace_id,
        "key": exchange.key or None,
        "method": exchange.method,
        "route": exchange.path,
        "status": exchange.status,
        "error": exchange.error,
        "model": model if asked else None,
        "stream": exchange.streams if asked else None,
        "choices": len(exchange.requests) if asked else None,
        "prompt_tokens": exchange.prompt_tokens if asked else None,
        "cached_tokens": exchange.cached_tokens if asked else None,
        "output_tokens": exchange.output_tokens if asked else None,
        "finish_reason": ",".join(exchange.finish_reasons) or None,
        "queue_seconds": _rounded(exchange.queue_seconds),
        "first_token_seconds": _rounded(exchange.first_token_seconds),
        "seconds": _rounded(exchange.seconds),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)


def is_told(exchange: Exchange) -> bool:
    """All but looks at a server that is well."""
    return exchange.path != "/health" or exchange.status >= 400


class JsonAccessLog:
    """Lines of JSON on `out`: see `Lines`. With `clients`, the address of the client is one of the fields."""

    def __init__(
        self,
        out: TextIO,
        *,
        model: str,
        clients: bool = False,
        waiting: int = LINES_WAITING,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._model = model
        self._clients = clients
        self._wall = wall
        self._lines = Lines(out, written_line, self._left_out, waiting=waiting)

    def __call__(self, exchange: Exchange) -> None:
        """It is over."""
        if is_told(exchange):
            address: Json = {"client": exchange.client or None} if self._clients else {}
            self._lines.put((self._wall(), facts(exchange, self._model) | address))

    def close(self) -> None:
        """Write what waits to be written."""
        self._lines.close()

    def _left_out(self, lines: int) -> Stamped:
        return self._wall(), {"left_out": lines}


def written_line(item: Stamped) -> str:
    """In ASCII, so that nothing a client sent can break a line or steer a terminal."""
    at, told = item
    when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return json.dumps({"time": when, "log": "access"} | told, separators=(",", ":")) + "\n"


class TextAccessLog:
    """Lines of the ordinary log, for a person at a terminal."""

    def __init__(self, *, clients: bool = False) -> None:
        self._clients = clients

    def __call__(self, exchange: Exchange) -> None:
        """It is over."""
        if is_told(exchange):
            log.info("%s", in_words(exchange, clients=self._clients))

    def close(self) -> None:
        """The log writes at once."""


def in_words(exchange: Exchange, *, clients: bool = False) -> str:
    """A line of text. What a client wrote stands in quotes, with what does not print escaped."""
    words = [f"{exchange.x_request_id} {exchange.method} {exchange.path!r} {exchange.status} {exchange.seconds:.3f} s"]
    if clients and exchange.client:
        words.append(f"from {exchange.client}")
    if exchange.key:
        words.append(f"key {exchange.key}")
    if exchange.requests:
        words.append(f"{exchange.id}: {exchange.prompt_tokens} tokens in ({exchange.cached_tokens} cached)")
        words.append(f"{exchange.output_tokens} out")
    if (first := exchange.first_token_seconds) is not None:
        words.append(f"the first after {first:.3f} s")
    words += exchange.finish_reasons
    return ", ".join(words + ([exchange.error] if exchange.error else []))
