"""How requests find a replica: kept connections first, otherwise a random ready one, as kube-proxy does.

Clients share a pool, as behind a gateway. A connection ends when its replica says so: with a reply sent while requests
wait there, after a minute, or when the replica stops. Refused requests come back after Retry-After, a few times.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from .requests import Outcome, Request

IDLE_SECONDS = 30.0
KEPT_SECONDS = 60.0
RETRY_SECONDS = {"full": 5.0, "stopping": 1.0, "nobody": 1.0}
MAX_TRIES = 4
NOBODY_TRIES = 40  # connection refused: proxies and clients try that again for longer


@dataclass(slots=True)
class Connection:
    """A kept connection to one replica."""

    pod: str
    opened: float
    idle_since: float = 0.0


@dataclass
class Clients:
    """The pool of kept connections, and how often requests were refused.

    Args:
        kept_share: of all requests, those that come over the pool; the others open a connection of their own.
    """

    rng: random.Random
    kept_share: float = 0.5
    refused: int = 0
    _idle: list[Connection] = field(default_factory=list)

    def connect(self, ready: list[str], now: float) -> Connection | None:
        """A connection to a ready replica; None when there is none."""
        pooled = self.rng.random() < self.kept_share
        while pooled and self._idle:
            kept = self._idle.pop()
            if kept.pod in ready and now - kept.idle_since <= IDLE_SECONDS:
                return kept
        return Connection(self.rng.choice(ready), now) if ready else None

    def give_back(self, connection: Connection, now: float, crowded: bool) -> None:
        """A reply has ended; the connection stays open unless the replica closes it."""
        if not crowded and now - connection.opened <= KEPT_SECONDS:
            connection.idle_since = now
            self._idle.append(connection)

    def retry_after(self, request: Request, why: str, now: float) -> float | None:
        """When a refused request comes again; None when its client gives up, which loses it."""
        self.refused += why != "nobody"
        request.tries += 1
        if request.tries >= (NOBODY_TRIES if why == "nobody" else MAX_TRIES):
            request.outcome, request.ended = Outcome.LOST, now
            return None
        return now + RETRY_SECONDS[why] * self.rng.uniform(0.8, 1.2)
