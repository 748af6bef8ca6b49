"""What clients ask for, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """How a request ended."""

    OPEN = "open"  # the simulation ended first
    DONE = "done"
    LOST = "lost"  # its client gave up after refusals
    CUT = "cut"  # it ran on a replica that was taken away


@dataclass(slots=True)
class Request:
    """One request, from the client's first try on. Times are seconds, lengths tokens."""

    arrival: float
    prompt: int
    output: int
    started: float | None = None  # its prefill began
    ended: float | None = None
    outcome: Outcome = Outcome.OPEN
    tries: int = 0
    produced: int = 0  # output tokens that were made before a preemption

    @property
    def known(self) -> int:
        """Tokens to compute before the next output token."""
        return self.prompt + self.produced


def fresh(requests: list[Request]) -> list[Request]:
    """The same requests before anything has happened to them, in the order of arrival."""
    made = [Request(request.arrival, request.prompt, request.output) for request in requests]
    return sorted(made, key=lambda request: request.arrival)
