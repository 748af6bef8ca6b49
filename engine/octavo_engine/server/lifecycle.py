"""The server's one state, and what a loading, serving or draining process tells about itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from octavo_engine.async_engine import AsyncEngine
from octavo_engine.batch import SchedulerStats
from octavo_engine.request import WaitReason


class State(StrEnum):
    """Where the process is between start and exit; it only moves forward."""

    STARTING = "starting"  # loading
    WARMING = "warming"  # computing a first token, for nobody
    SERVING = "serving"
    DRAINING = "draining"  # finishing what was begun, refusing what is new
    STOPPED = "stopped"


@dataclass(kw_only=True)
class Lifecycle:
    """Written by the thread that starts and stops the server, read by any."""

    model_name: str
    max_num_seqs: int
    state: State = State.STARTING
    engine: AsyncEngine | None = None
    startup_seconds: float | None = None
    fault: str | None = None  # why only a restart can help, in words
    estimate: Callable[[SchedulerStats], float] = lambda _: 0.0  # seconds that the prompts ahead will take
    limit: Callable[[], dict[str, str] | None] = lambda: None  # what limits the engine now, in words
    began: float = field(default_factory=time.monotonic)  # the process, in monotonic seconds

    @property
    def ready(self) -> bool:
        """True when new requests are welcome."""
        return self.state is State.SERVING

    @property
    def alive(self) -> bool:
        """False when only a restart can help. A slow start, a long queue or slow HTTP is not a reason."""
        return self.fault is None and not (self.engine is not None and self.engine.died)

    def states(self) -> dict[str, float]:
        """Every state by name: 1 for the present one, 0 for the others."""
        present = self.state
        return {state.value: float(state is present) for state in State}

    def serving(self) -> None:
        """The engine has given its first token: take requests."""
        self.startup_seconds = time.monotonic() - self.began
        self.state = State.SERVING

    def stats(self) -> SchedulerStats:
        """The scheduler's snapshot; an empty one before there is a scheduler."""
        return SchedulerStats() if self.engine is None else self.engine.stats()

    def load(self) -> dict[str, object]:
        """What a scaler needs to know of this replica; see docs/API.md."""
        stats, engine = self.stats(), self.engine
        oldest = stats.oldest_arrival
        return {
            "model_name": self.model_name,
            "state": self.state.value,
            "waiting": {reason.value: stats.waiting.get(reason, 0) for reason in WaitReason},
            "running": stats.running,
            "max_num_seqs": self.max_num_seqs,
            "arrivals_total": 0 if engine is None else engine.arrivals,
            "completions_total": 0 if engine is None else engine.completions,
            "estimated_queue_seconds": self.estimate(stats),
            "oldest_wait_seconds": 0.0 if oldest is None else max(0.0, time.monotonic() - oldest),
            "kv_cache_usage_ratio": stats.kv_usage,
            "startup_seconds": self.startup_seconds,
            "limited_by": self.limit(),
        }
