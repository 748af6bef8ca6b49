"""The management port: probes, metrics, load and timelines. No keys, no prompts, no answers."""

from __future__ import annotations

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from octavo_engine.server.context import Timelines
from octavo_engine.server.lifecycle import Lifecycle


def build_management_app(lifecycle: Lifecycle, registry: CollectorRegistry, timelines: Timelines) -> FastAPI:
    """The application; it answers from the moment the process starts."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

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

    @app.get("/metrics")
    async def metrics() -> Response:
        """Prometheus' text format."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/requests/{request_id}/timeline")
    async def timeline(request_id: str) -> Response:
        """What happened to a recent request, and why."""
        events = timelines.find(request_id)
        if events is None:
            return JSONResponse({"error": "no recent request has this id"}, 404)
        return JSONResponse({"id": request_id, "events": events})

    return app


def _status(good: bool) -> int:
    return 200 if good else 503
