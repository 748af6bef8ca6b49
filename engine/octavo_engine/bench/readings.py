"""What the server says of itself while it is measured: who runs, who waits, how full the KV cache is.

Of `/metrics` only the lines of a few series are read: parsing all of it would delay the client that measures.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from octavo_engine.bench.client import NotAnswered, fetch
from octavo_engine.bench.wire import Connections

RUNNING, WAITING, USAGE, PREEMPTED = "running", "waiting", "kv_usage", "preemptions"
SERIES = {
    "octavo_requests_running": RUNNING,
    "octavo_requests_waiting": WAITING,  # one for each reason: summed
    "octavo_kv_cache_usage_ratio": USAGE,
    "octavo_preemptions_total": PREEMPTED,
    "vllm:num_requests_running": RUNNING,
    "vllm:num_requests_waiting": WAITING,
    "vllm:kv_cache_usage_perc": USAGE,  # named a percentage, and a share all the same
    "vllm:gpu_cache_usage_perc": USAGE,
    "vllm:num_preemptions_total": PREEMPTED,
}
LINE = re.compile(
    rf"^({'|'.join(map(re.escape, SERIES))})(?:\{{[^\n]*\}})? ([^ \n]+)", re.MULTILINE
)  # name, labels, value


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One look. `at` counts from the beginning of the measurement; None is what the server does not tell."""

    at: float
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None  # a share
    preemptions: float | None = None  # since the server's start


def read(text: str, at: float) -> Reading:
    """Find the known series in Prometheus' text form, each summed over its labels; of shares the largest."""
    found: dict[str, float] = {}
    own = "octavo_requests_running" in text  # which may show vLLM's names beside its own
    for name, value in LINE.findall(text):
        if not own or name.startswith("octavo_"):
            known, number = SERIES[name], float(value)
            if math.isfinite(number):
                before = found.get(known, 0.0)
                found[known] = max(before, number) if known == USAGE else before + number
    return Reading(at=at, **found)


class Looks:
    """Looks at a server's figures, if there is a place for them; by connections of its own. What cannot be read is left
    out: the report says how many looks there were."""

    def __init__(self, connections: Connections | None, began: Callable[[], float]) -> None:
        self._connections = connections
        self._began = began
        self.readings: list[Reading] = []

    async def look(self) -> None:
        """Once."""
        if self._connections is None:
            return
        asked = time.monotonic()
        with suppress(NotAnswered, ValueError):
            text = (await fetch(self._connections, "GET", "/metrics")).decode("utf-8", "replace")
            self.readings.append(read(text, asked - self._began()))

    async def keep_looking(self, every: float) -> None:
        """Each so many seconds, until it is cancelled."""
        while True:
            await asyncio.sleep(every)
            await self.look()

    def close(self) -> None:
        """Hang up."""
        if self._connections is not None:
            self._connections.close()
