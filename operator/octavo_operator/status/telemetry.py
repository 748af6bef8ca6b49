"""What samples of the replicas and the autoscaler know of a service, as status shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo_operator.autoscaling import Decision, Limit
from octavo_operator.checkpoint import Progress

KEPT_DECISIONS = 5


@dataclass(frozen=True)
class QueueFigures:
    """Load of all replicas together, as last published; and what limits the fullest of them, as it says itself."""

    waiting: int = 0
    running: int = 0
    limiter: str = ""
    limited: str = ""


@dataclass(frozen=True)
class Telemetry:
    """What scraping and scaling know of a service.

    Attributes:
        ready: ready replicas at the last sample; answered: those of them with data. None before the first sample.
        limited: what holds the replica count below what the load asks for.
        victim: pod to go first while the count is being lowered.
        decisions: records of the last changes, newest first.
        progress: of the model's fetch, while one is under way and tells.
    """

    desired: int
    ready: int | None = None
    answered: int = 0
    no_data: str = ""
    queue: QueueFigures | None = None
    load_seconds: float | None = None
    limited: Limit | None = None
    victim: str | None = None
    decisions: tuple[dict[str, Any], ...] = ()
    progress: Progress | None = None


def decision_record(decision: Decision, now: str) -> dict[str, Any]:
    """A change of the replica count as status keeps it."""
    figures = decision.inputs
    return {
        "time": now,
        "fromReplicas": decision.previous,
        "toReplicas": decision.replicas,
        "reason": decision.reason.value,
        "message": f"{decision.message} (capacity {figures.capacity:.0f} per replica, "
        f"oldest wait {figures.oldest_wait_seconds:.1f} s)",
    }
