"""The management port: probes, metrics, load, explanations and the flush of the cache. No keys, prompts or answers."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from octavo_engine.errors import OctavoError
from octavo_engine.history.recent import History
from octavo_engine.server.explaining import explaining_routes
from octavo_engine.server.lifecycle import Lifecycle
from octavo_engine.server.openapi import document

FLUSH_SECONDS = 60.0  # it waits for the present step, which may be a long one


def build_management_app(
    lifecycle: Lifecycle,
    registry: CollectorRegistry,
    history: History,
    on_flush: Callable[[int], None] = lambda _: None,
) -> FastAPI:
    """The application; it answers from the moment the process starts. `on_flush` is told how many blocks it freed."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(explaining_routes(lifecycle, history))

    @app.get("/livez")
    async def livez() -> Response:
        """Fails only when the step thread is dead or stuck, so that a restart helps. Takes no lock of the engine's."""
        return PlainTextResponse(lifecycle.fault or "ok", _status(lifecycle.alive))

    @app.get("/readyz")
    async def readyz() -> Response:
        """Succeeds while new requests are welcome."""
        ready = lifecycle.ready and lifecycle.alive
        return PlainTextResponse(lifecycle.state.value, _status(ready))

    @app.get("/load")
    async def load() -> Response:
        """What a scaler needs to know."""
        return JSONResponse(lifecycle.load())

    @app.get("/openapi.json")
    async def openapi() -> Response:
        """What the API's routes take and answer; here, because the API port serves nothing beside them."""
        return JSONResponse(document(lifecycle.model_name))

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.post("/flush")
    async def flush(request: Request) -> Response:
        """Forget the cached prefixes that no running request holds."""
        if (refused := _refusal_of_flush(request)) is not None:
            return refused
        try:
            blocks = await _flush(lifecycle)
        except (OctavoError, TimeoutError) as error:
            return JSONResponse({"error": str(error) or "the present step takes too long"}, 503)
        on_flush(blocks)
        return JSONResponse({"flushed_blocks": blocks, "held_blocks": lifecycle.stats().used_blocks})

    return app


async def _flush(lifecycle: Lifecycle) -> int:
    if lifecycle.engine is None:
        return 0  # nothing was computed yet
    async with asyncio.timeout(FLUSH_SECONDS):
        return await asyncio.wrap_future(lifecycle.engine.flush())


def _refusal_of_flush(request: Request) -> Response | None:
    """What changes something is done from this machine alone, by no web page in its browser, and needs no words."""
    peer = request.client.host if request.client else ""
    if not _is_loopback(peer) or "origin" in request.headers:
        return JSONResponse({"error": "only processes on the server's own machine may flush its cache"}, 403)
    if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
        return JSONResponse({"error": "a flush takes no body"}, 400, {"Connection": "close"})
    return None


def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _status(good: bool) -> int:
    return 200 if good else 503
