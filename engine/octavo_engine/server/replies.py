"""Errors in OpenAI's form. Every refusal is made here, so none can carry a path or a traceback."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from octavo_engine.errors import (
    Draining,
    EngineDead,
    Interrupted,
    OctavoError,
    Overloaded,
    RateLimited,
    RequestError,
)
from octavo_engine.server.exchange import exchange_of

MAX_MESSAGE_CHARACTERS = 800
DRAINING_RETRY_SECONDS = 1  # another replica is a connection away
UNAVAILABLE: dict[type[OctavoError], str] = {
    Draining: "shutting_down",
    Interrupted: "interrupted",
    EngineDead: "engine_stopped",
}
"""Codes of what another replica, or this one later, may serve."""


@dataclass(eq=False)
class Refusal(Exception):
    """An HTTP error reply, also raised to end a request early."""

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> dict[str, dict[str, str | None]]:
        """The JSON object, which is also the last event of a stream that failed."""
        message = printable(self.message, MAX_MESSAGE_CHARACTERS)
        return {"error": {"message": message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def why(self) -> str:
        """In one word, for the access log and traces."""
        return self.code or self.type

    def response(self) -> JSONResponse:
        """The whole reply."""
        return ErrorReply(self)


class ErrorReply(JSONResponse):
    """A refusal on its way to the client. Its exchange learns why on the way, wherever it was refused."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.body, status_code=refusal.status, headers=refusal.headers)
        self._why = refusal.why

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        if (exchange := exchange_of(scope)) is not None:
            exchange.fail(self._why)
        await super().__call__(scope, receive, send)


def fault(request_id: str) -> Refusal:
    """What a client is told of a fault of ours. The log has the traceback, and this id."""
    message = f"an internal error ended this request; its id is {request_id}"
    return Refusal(500, message, "server_error", code="internal_error")


def refusal_of(error: OctavoError) -> Refusal:
    """What a client is told of an error; the type of the error decides."""
    match error:
        case RequestError():
            param = None if error.param is None else printable(error.param, 128)
            return Refusal(400, str(error), param=param, code=error.code or "invalid_value")
        case RateLimited():
            # On the same connection: another replica may not have met this key yet, but is not there for that.
            return Refusal(429, str(error), error.kind, None, "rate_limit_exceeded", _later(error.retry_after))
        case Overloaded():
            return Refusal(429, str(error), "overloaded_error", None, str(error.reason), _elsewhere(error.retry_after))
        case Draining() | Interrupted() | EngineDead():
            code, headers = UNAVAILABLE[type(error)], _elsewhere(DRAINING_RETRY_SECONDS)
            return Refusal(503, str(error), "service_unavailable", None, code, headers)
        case _:
            return Refusal(500, str(error), "server_error", None, "internal_error")


def _later(seconds: int) -> dict[str, str]:
    return {"Retry-After": str(seconds)}


def _elsewhere(seconds: int) -> dict[str, str]:
    """Ask to come back later, on a new connection: a pooled one would lead to this replica again."""
    return _later(seconds) | {"Connection": "close"}


def printable(text: str, limit: int) -> str:
    """`text` without control characters or lone surrogates, at most `limit` characters."""
    kept = "".join(char if char.isprintable() else " " for char in text[: limit + 1])
    return kept if len(kept) <= limit else kept[: limit - 1] + "…"
