"""What begins next, and what never will: pure decisions about the states of stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from stages.plan import Stage

SOME_FAILED = 1  # pytest's exit status when it ran all tests and some failed
A_FEW = 3  # tests: more at once are no coincidence


class State(Enum):
    """Where a stage is."""

    WAITING = "not begun"
    RUNNING = "running"
    PASSED = "passed"
    DOUBTED = "in doubt"
    FAILED = "failed"

    @classmethod
    def after(cls, status: int, failed: int, *, again: bool) -> State:
        """After this exit status of a stage of which so many tests have failed, for the first time or again.

        A few that fail beside thousands are run again when nothing else runs: what is broken is so then, too, and what
        only a busy machine upset is told at the end, by name, and has cost nobody a second run of everything.
        """
        if status == 0 and failed == 0:
            return cls.PASSED
        few = status == SOME_FAILED and 0 < failed <= A_FEW
        return cls.DOUBTED if few and not again else cls.FAILED


def to_begin(stages: Sequence[Stage], states: Mapping[str, State]) -> list[Stage]:
    """Those whose predecessors in this run have passed. After a failure none: what runs goes on to its end, and then
    a stage in doubt is run again, its failed tests alone."""
    if State.FAILED in states.values():
        return []
    if State.DOUBTED in states.values():
        alone = State.RUNNING not in states.values()
        return [stage for stage in stages if states[stage.name] is State.DOUBTED][:1] if alone else []
    return [
        stage
        for stage in stages
        if states[stage.name] is State.WAITING
        and all(states.get(name, State.PASSED) is State.PASSED for name in stage.after)
    ]


def gives_way(stage: Stage, stages: Sequence[Stage]) -> bool:
    """Whether it shall: a run in which nothing else wants the processors has nobody to give way to."""
    return stage.gives_way and any(not other.gives_way for other in stages)
