"""What the routes work with."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from octavo_engine.async_engine import AsyncEngine
from octavo_engine.request import Event, RejectReason, Request
from octavo_engine.server.auth import KeyRing
from octavo_engine.server.intake import Limits
from octavo_engine.server.lifecycle import Lifecycle
from octavo_engine.tokenizer import Tokenizer

RECENT_REQUESTS = 1024


class Timelines:
    """What happened to the most recent requests, by their id. Keeps no prompt and no answer."""

    def __init__(self, capacity: int = RECENT_REQUESTS) -> None:
        self._capacity = capacity
        self._events: OrderedDict[str, list[Event]] = OrderedDict()

    def add(self, requests: Iterable[Request]) -> None:
        """Remember the requests; their events are read when asked for."""
        for request in requests:
            self._events[request.id] = request.events
        while len(self._events) > self._capacity:
            self._events.popitem(last=False)

    def find(self, request_id: str) -> list[dict[str, str | float]] | None:
        """The events of a request, in seconds since it arrived; None when it is unknown or long gone.

        The id of an answer stands for the first of its choices.
        """
        events = self._events.get(request_id) or self._events.get(f"{request_id}-0")
        if events is None:
            return None
        began = events[0].at
        return [{"seconds": round(event.at - began, 6), "what": event.what, "why": event.why} for event in events]


@dataclass(frozen=True, kw_only=True)
class Context:
    """Everything behind the API. Built once, when the engine is ready."""

    model_name: str
    engine: AsyncEngine
    tokenizer: Tokenizer
    limits: Limits
    keys: KeyRing
    lifecycle: Lifecycle
    max_body_bytes: int
    share_prefixes: bool = False  # between callers with different keys
    timelines: Timelines = field(default_factory=Timelines)
    on_reject: Callable[[RejectReason], None] = lambda _: None
    created: int = field(default_factory=lambda: int(time.time()))
