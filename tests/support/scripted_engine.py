"""An engine over a runner that computes nothing: it answers each request with consecutive numbers, or fails on
demand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from octavo_engine.async_engine import AsyncEngine
from octavo_engine.batch import Batch, Known
from octavo_engine.engine import Engine
from octavo_engine.request import Request, Sampled
from octavo_engine.scheduling.kv_cache import KVCache
from octavo_engine.scheduling.scheduler import Scheduler
from patience import PATIENCE_SECONDS

EOS = 0


class ScriptedRunner:
    """Samples `last token + 1`. `before` is called at each step; a request id in `broken` gets no token."""

    def __init__(self) -> None:
        self.before: Callable[[Batch], None] = lambda batch: None
        self.broken: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[Batch] = []

    def launch(self, batch: Batch) -> Known:
        assert self.gate.wait(PATIENCE_SECONDS)
        self.batches.append(batch)
        self.before(batch)
        return Known([self._sample(piece.request) for piece in batch.sampling])

    def _sample(self, request: Request) -> Sampled:
        return Sampled(-1, error="broken") if request.id in self.broken else Sampled(request.tokens[-1] + 1)


class NumberText:
    """Shows each token as its number; token 13 cannot be shown, and token 99 is a stop string."""

    def __init__(self) -> None:
        self.stopped: str | None = None

    def push(self, token_id: int) -> str:
        if token_id == 13:
            raise ValueError("13 cannot be shown")
        if token_id == 99:
            self.stopped = "99"
            return ""
        return f"{token_id} "

    def finish(self) -> str:
        return "."


class CountingMetrics:
    """Counts what the engine reports."""

    def __init__(self) -> None:
        self.tokens = self.steps = 0
        self.ended: list[Request] = []

    def step(self, batch: Batch, seconds: float) -> None:
        self.steps += 1

    def token(self, request: Request, at: float) -> None:
        self.tokens += 1

    def finished(self, request: Request, at: float) -> None:
        self.ended.append(request)


class Clock:
    """A clock that moves only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Scripted:
    """All parts of one engine."""

    def __init__(self, *, blocks: int = 64, seqs: int = 8, clock: Clock | None = None, **options: Any) -> None:
        self.runner, self.metrics = ScriptedRunner(), CountingMetrics()
        self.cache = KVCache(blocks, 4)
        self.scheduler = Scheduler(self.cache, max_num_batched_tokens=64, max_num_seqs=seqs)
        self.engine = Engine(
            scheduler=self.scheduler,
            runner=self.runner,
            metrics=self.metrics,
            detokenizer=lambda request: NumberText(),
            eos_ids=frozenset({EOS}),
            max_model_len=1000,
            **({"clock": clock} if clock else {}),
        )
        limits = {"max_waiting_requests": 4, "max_waiting_prompt_tokens": 100} | options
        self.asynchronous = AsyncEngine(self.engine, **limits)
