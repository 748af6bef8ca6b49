"""One HTTP request from its receipt to the end of its reply, as the access log and traces tell of it.

Those who learn something write it down: the gate, the routes, and whoever refuses. Ids, numbers and reasons; no prompt,
no answer and no key.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import Scope

from octavo_engine.request import EventKind, FinishReason, Request

log = logging.getLogger(__name__)

CLIENT_GONE = 499  # no status of HTTP's: what servers log where a client has left before there was a reply
MAX_PATH = 256  # characters: who asks for nonsense does not fill the log
# The header's version, the trace's id, its span's, and flags: https://www.w3.org/TR/trace-context/
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NEVER_QUEUED = (EventKind.ARRIVED, EventKind.REJECTED)


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """What is known of it. Times are in seconds, on the engine's monotonic clock."""

    method: str
    path: str  # without its query
    client: str  # the address that it came from, a proxy's where there is one; empty: not known
    headers: Headers
    x_request_id: str
    began: float
    ended: float = 0.0
    key: str = ""  # the name of the key that it came with
    status: int = CLIENT_GONE
    error: str | None = None  # the code of what it was refused or ended with
    streams: bool = False
    requests: Sequence[Request] = ()  # that its body became, `copies` for each prompt
    copies: int = 1
    trace_id: str | None = None  # of the trace that it is part of, 32 hexadecimal digits

    @classmethod
    def of(cls, scope: Scope, headers: Headers, *, x_request_id: str, began: float) -> Exchange:
        """One that begins."""
        address = scope.get("client")
        parent = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
        return cls(
            method=scope["method"],
            path=scope["path"][:MAX_PATH],
            client=address[0] if address else "",
            headers=headers,
            x_request_id=x_request_id,
            began=began,
            trace_id=None if parent is None else parent[1],
        )

    @property
    def seconds(self) -> float:
        """From its receipt to the end of its reply."""
        return self.ended - self.began

    @property
    def id(self) -> str | None:
        """The answer's; None where there is none."""
        return self.requests[0].id.rpartition("-")[0] if self.requests else None

    @property
    def prompt_tokens(self) -> int:
        """A prompt counts once, however many choices it has, as in the answer."""
        return sum(request.num_prompt for request in self.requests[:: self.copies])

    @property
    def cached_tokens(self) -> int:
        """Of these, those found in the prefix cache."""
        return sum(request.num_cached for request in self.requests[:: self.copies])

    @property
    def output_tokens(self) -> int:
        """Of all choices."""
        return sum(request.num_output for request in self.requests)

    @property
    def finish_reasons(self) -> list[str]:
        """Of its choices, each reason once, in their order; none of those that were never queued.

        One that has not ended yet is being ended, since nobody waits for it any more.
        """
        queued = (request for request in self.requests if request.events[-1].what not in _NEVER_QUEUED)
        return list(dict.fromkeys(str(request.finish_reason or FinishReason.ABORT) for request in queued))

    @property
    def queue_seconds(self) -> float | None:
        """From its receipt until the first of its requests was admitted; None: none was."""
        return self._first(EventKind.ADMITTED)

    @property
    def first_token_seconds(self) -> float | None:
        """From its receipt to the first token of any choice; None: there was none."""
        return self._first(EventKind.FIRST_TOKEN)

    def fail(self, code: str) -> None:
        """It ends with an error."""
        self.error = code

    def leave(self) -> None:
        """The client has gone before it had asked: whatever is answered, nobody reads it."""
        self.status, self.error = CLIENT_GONE, None

    def _first(self, what: EventKind) -> float | None:
        return min((at - self.began for request in self.requests for at in _times(request, what)), default=None)


def _times(request: Request, what: EventKind) -> Iterator[float]:
    """The step thread may add to the lines of one that has not ended."""
    return (event.at for event in request.events.copy() if event.what is what)


def exchange_of(scope: Scope) -> Exchange | None:
    """The exchange that a scope belongs to; None: nobody tells of it."""
    found: Exchange | None = scope.get("state", {}).get("exchange")
    return found


Watcher = Callable[[Exchange], None]


def watched_by(watchers: Sequence[Watcher]) -> Watcher:
    """Tells each of them. A fault of one is logged, and is neither the client's nor the others'."""

    def tell(exchange: Exchange) -> None:
        for watcher in watchers:
            try:
                watcher(exchange)
            except Exception:
                log.exception("request %s cannot be told of", exchange.x_request_id)

    return tell
