"""What begins next, and what never will: pure decisions about the states of stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from stages.plan import Stage


class State(Enum):
    """Where a stage is."""

    WAITING = "not begun"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"


def to_begin(stages: Sequence[Stage], states: Mapping[str, State]) -> list[Stage]:
    """Those whose predecessors in this run have passed. After a failure none: what runs goes on to its end."""
    if State.FAILED in states.values():
        return []
    return [
        stage
        for stage in stages
        if states[stage.name] is State.WAITING
        and all(states.get(name, State.PASSED) is State.PASSED for name in stage.after)
    ]


def gives_way(stage: Stage, stages: Sequence[Stage]) -> bool:
    """Whether it shall: a run in which nothing else wants the processors has nobody to give way to."""
    return stage.gives_way and any(not other.gives_way for other in stages)
