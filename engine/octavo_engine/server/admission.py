"""Who may pass the door, and what of it a reply tells: the head's form, the key, and what the key may take.

What is decided here depends on the decoded path and the headers alone.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo_engine.server.auth import KeyRing
from octavo_engine.server.exchange import exchange_of
from octavo_engine.server.framing import MAX_HEAD_BYTES
from octavo_engine.server.key_file import Key
from octavo_engine.server.quotas import Quotas, Visit
from octavo_engine.server.replies import Refusal

OPEN_PATHS = frozenset({"/health"})  # everything else, known or not, needs a key
MAX_HEADERS = 100
CLOSE = {"Connection": "close"}


class Admission:
    """Passes on what may pass, with `namespace` and `visit` in its state."""

    def __init__(self, app: ASGIApp, keys: KeyRing, quotas: Quotas) -> None:
        self._app = app
        self._keys = keys
        self._quotas = quotas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass; whatever becomes of it, its key gets back what it did not use."""
        key = self._key(scope["path"], Headers(scope=scope))
        if isinstance(key, Refusal):
            await key.response()(scope, receive, send)
            return
        visit = self._quotas.visit(key)
        if key is not None and (exchange := exchange_of(scope)) is not None:
            exchange.key = key.name
        scope["state"] |= {"namespace": "" if key is None else key.namespace, "visit": visit}
        try:
            await self._app(scope, receive, _telling(visit, send) if visit.limited else send)
        finally:
            visit.end()

    def _key(self, path: str, headers: Headers) -> Key | Refusal | None:
        """The caller's key, or why it may not pass; None where none is needed."""
        if len(headers.raw) > MAX_HEADERS or _bytes_of(path, headers) > MAX_HEAD_BYTES:
            # One that came in many pieces has been refused before; here are those that came in one.
            message = f"the head has more than {MAX_HEADERS} headers or {MAX_HEAD_BYTES} bytes"
            return Refusal(431, message, code="head_too_long", headers=CLOSE)
        if "transfer-encoding" in headers and "content-length" in headers:
            # Who stands before us may have gone by the other one, and taken the next request for this one's body.
            return Refusal(400, "a body has either a Content-Length or a Transfer-Encoding", headers=CLOSE)
        if path in OPEN_PATHS or not self._keys.required:
            return None
        key = self._keys.identify(headers.get("authorization", ""))
        if key is None:
            challenge = {"WWW-Authenticate": "Bearer"}
            return Refusal(401, "send a valid API key as a bearer token", code="invalid_api_key", headers=challenge)
        return key


def _bytes_of(path: str, headers: Headers) -> int:
    """Of a head, at least."""
    return len(path) + sum(len(name) + len(value) for name, value in headers.raw)


def _telling(visit: Visit, send: Send) -> Send:
    """Adds to a reply what its key has left."""

    async def send_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(visit.headers())
        await send(message)

    return send_on
