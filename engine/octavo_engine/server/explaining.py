"""The management port's routes that say why: one request's timeline, and the queue with the slowest requests."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import JSONResponse

from octavo_engine.history.documents import slowest, summary, timeline_document
from octavo_engine.history.recent import History
from octavo_engine.request import Request
from octavo_engine.server.lifecycle import Lifecycle

MOST_LISTED = 100


def explaining_routes(lifecycle: Lifecycle, history: History) -> APIRouter:
    """Routes that only read; a look takes no lock and costs a busy engine at most some milliseconds."""
    router = APIRouter()

    def live() -> list[Request]:
        return [] if lifecycle.engine is None else lifecycle.engine.live_requests()

    @router.get("/v1/requests/{request_id}/timeline")
    async def timeline(request_id: str) -> Response:
        """What happened to a live or recent request, and why."""
        found = history.find(request_id, live(), lifecycle.stats(), time.monotonic())
        if not found:
            return JSONResponse({"error": "no live or recent request has this id"}, 404)
        return JSONResponse(timeline_document(found, time.time() - time.monotonic()))

    @router.get("/v1/requests")
    async def requests(limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 10) -> Response:
        """What the queue waits for now, the requests that have waited and run longest, and the slowest of late."""
        offset, ended = time.time() - time.monotonic(), history.ended()
        oldest = sorted(live(), key=lambda request: request.arrival)[:limit]
        return JSONResponse(
            {
                "queue": queue_document(lifecycle, history, time.monotonic()),
                "live": [summary(item, offset) for item in history.live(oldest, lifecycle.stats(), time.monotonic())],
                "slowest": [summary(item, offset) for item in slowest(ended, limit)],
                "ended_known": len(ended),
            }
        )

    return router


def queue_document(lifecycle: Lifecycle, history: History, now: float) -> dict[str, Any]:
    """The queue at `now`, in seconds on the engine's clock. `reason` is what holds those that wait; None: nobody."""
    stats = lifecycle.stats()
    log = history.queue_at(stats)
    since = now if log.present is None or log.since is None else log.since
    return lifecycle.load() | {
        "reason": log.present,
        "reason_seconds": round(max(0.0, now - since), 3),
        "waiting_prompt_tokens": stats.waiting_prompt_tokens,
        "running_prompt_tokens": stats.running_prompt_tokens,
    }
