"""What the routes work with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo_engine.async_engine import AsyncEngine
from octavo_engine.config import ServerConfig
from octavo_engine.request import RejectReason, Request
from octavo_engine.server.auth import KeyRing
from octavo_engine.server.embeddings import Embeddings
from octavo_engine.server.exchange import Watcher
from octavo_engine.server.intake import Limits
from octavo_engine.server.lifecycle import Lifecycle
from octavo_engine.server.tools import Formats
from octavo_engine.structured import Forms
from octavo_engine.tokenizer import Tokenizer


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
    body_seconds: float = ServerConfig.body_timeout_seconds  # longest that a client may take to send one
    origins: tuple[str, ...] = ()  # of web pages that may call the API
    forms: Forms  # that answers can be kept to
    formats: Formats = field(default_factory=Formats)  # how the model writes calls and thoughts
    share_prefixes: bool = False  # between callers with different keys
    embeddings: Embeddings = field(default_factory=Embeddings)
    on_reject: Callable[[RejectReason], None] = lambda _: None
    on_refused: Callable[[Sequence[Request]], None] = lambda _: None  # whole bodies for which there was no room
    on_end: Watcher = lambda _: None  # of each request, however it ended
    created: int = field(default_factory=lambda: int(time.time()))
