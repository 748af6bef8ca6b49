"""The API port's application: the gate that every request passes, then the routes, then errors in OpenAI's form."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo_engine.errors import OctavoError, RequestError
from octavo_engine.request import RejectReason
from octavo_engine.server.admission import Admission
from octavo_engine.server.context import Context
from octavo_engine.server.cors import with_origins
from octavo_engine.server.exchange import Exchange, Watcher
from octavo_engine.server.quotas import Quotas
from octavo_engine.server.replies import Refusal, fault, refusal_of
from octavo_engine.server.routes import build_routes

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def build_app(context: Context) -> ASGIApp:
    """The application of the API port. No documentation and no metrics are served there."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.include_router(build_routes(context))

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refusal)
        if error.status in (400, 413, 415):
            context.on_reject(RejectReason.INVALID)
        return error.response()

    async def failed(_: Request, error: Exception) -> Response:
        assert isinstance(error, OctavoError)
        if isinstance(error, RequestError):
            context.on_reject(RejectReason.INVALID)
        return refusal_of(error).response()

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(OctavoError, failed)
    app.add_exception_handler(HTTPException, _unknown_route)
    app.add_exception_handler(Exception, _broken)
    admitted: ASGIApp = Admission(app, context.keys, Quotas(on_reject=context.on_reject))
    if context.origins:
        admitted = with_origins(admitted, context.origins)
    return Gate(admitted, last_reply=lambda: _is_last(context), on_end=context.on_end)


def _is_last(context: Context) -> bool:
    """Whether a connection should end with the reply that begins now."""
    return not context.lifecycle.ready or any(context.engine.stats().waiting.values())


async def _unknown_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = {404: "there is no such route", 405: "this route does not know that method"}
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    message = text.get(error.status_code, "the request cannot be served")
    return Refusal(error.status_code, message, code=code, headers=dict(error.headers or {})).response()


async def _broken(request: Request, _: Exception) -> Response:
    """A fault of ours. The log has the traceback under the id that the client sees."""
    return fault(request.state.request_id).response()


class Gate:
    """Gives each request an id, and tells `on_end` of it when it is over.

    While requests wait, each reply is its connection's last: a client that keeps connections would otherwise queue here
    for as long as they live, beside a new replica that is idle. So it is while the server drains.
    """

    def __init__(self, app: ASGIApp, last_reply: Callable[[], bool], on_end: Watcher) -> None:
        self._app = app
        self._last_reply = last_reply
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may pass."""
        if scope["type"] != "http":
            return
        began = time.monotonic()
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        exchange = Exchange.of(scope, headers, x_request_id=request_id, began=began)
        scope["state"] = {"exchange": exchange, "arrival": began, "request_id": request_id}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                reply = MutableHeaders(scope=message)
                reply["x-request-id"] = request_id
                if self._last_reply():
                    reply["connection"] = "close"
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            exchange.leave()  # while it was sending its body
        finally:
            exchange.ended = time.monotonic()
            self._on_end(exchange)
