"""The operator's own port: /livez, /readyz and /metrics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

Check = Callable[[], str | None]
"""None when well, otherwise what is wrong in words."""


@asynccontextmanager
async def serve(host: str, port: int, registry: CollectorRegistry, alive: Check, ready: Check) -> AsyncIterator[None]:
    """Listens for the length of the block."""

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/livez", _answer(alive))
    app.router.add_get("/readyz", _answer(ready))
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        yield
    finally:
        await runner.cleanup()


def _answer(check: Check) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handler(_: web.Request) -> web.StreamResponse:
        trouble = check()
        return web.Response(status=503 if trouble else 200, text=(trouble or "ok") + "\n")

    return handler
