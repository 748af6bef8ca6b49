"""What limits an engine, with the figures that say so, the setting to change first and what that should do. Pure.

Each is a row of the table of symptoms that the board "What is wrong" shows as graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SELDOM_BUSY = 0.7  # with requests running all the time, the steps should take nearly all of it


class Limiter(StrEnum):
    """Why an engine does not do more, or why its answers come late."""

    LOAD = "load"  # nobody asks for more
    QUEUE = "queue"  # a limit of requests or tokens, in a flag
    KV = "kv"  # KV blocks
    CPU = "cpu"  # the container's limit of processor time
    HTTP = "http"  # what the process does beside its steps, in the same interpreter
    PREFIX = "prefix"  # prompts that begin alike, computed again and again
    PROMPTS = "prompts"  # a few long ones that others stand behind
    BATCH = "batch"  # what shares a step makes it long
    MEMORY = "memory"  # the memory's speed
    COMPUTE = "compute"  # the processor's speed
    OVERHEAD = "overhead"  # within a step, neither of these


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that limits.

    Attributes:
        evidence: the figures that say so.
        advice: the one setting to change first.
        effect: what should be seen then, with figures where they are known.
    """

    limiter: Limiter
    evidence: str
    advice: str
    effect: str

    @property
    def sentence(self) -> str:
        """All of it."""
        return f"{self.evidence}. {self.advice[:1].upper()}{self.advice[1:]}: {self.effect}."


def percent(share: float) -> str:
    """`40 %`."""
    return f"{100 * share:.0f} %"


def span(seconds: float) -> str:
    """`1.25 s`, `80 ms`."""
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.3g} ms"
