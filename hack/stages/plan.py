"""Every stage, as a plain value: its command, what comes before it, and whether it gives way to the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Stage:
    """One command. `after` are stages that must have passed, where they are part of the same run.

    A stage that gives way gets mostly what the processors have left over when others of the same run need them.
    `undo` is run at the end, whatever has happened, unless what the stage makes was there before; then `look` is,
    after a failure, and says what may have been the matter with it.
    """

    name: str
    command: tuple[str, ...]
    after: tuple[str, ...] = ()
    gives_way: bool = False
    tests: bool = True
    undo: tuple[str, ...] = ()
    look: tuple[str, ...] = ()

    def elsewhere(self) -> Stage:
        """On somebody else's cluster, where nothing of this machine is made."""
        return replace(self, undo=(), look=())


def _pytest(*arguments: str) -> tuple[str, ...]:
    return (".venv/bin/pytest", *arguments)


# A file is one worker's, so that what its tests share is made once, and the longest are begun first.
_BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
_PURE = ("tests/engine/pure", "tests/operator", "tests/contract", "tests/hack")
_TORCH = ("tests/clients", "tests/engine", "tests/gpu", "--ignore", "tests/engine/pure")

_DOWN = ("hack/cluster", "down")  # which says by itself if the disk was full
_PRESSURE = ("hack/cluster", "pressure")

_ALL = (
    # Short, and with the deadlines of servers in it: by itself.
    Stage("pure", _pytest("-n", "auto", *_PURE)),
    Stage("node", ("hack/cluster", "up", "--tests"), ("pure",), tests=False, undo=_DOWN, look=_PRESSURE),
    # Mostly waits for pods, so that there is time for what follows beside it.
    Stage(
        "cluster",
        _pytest("-n", "6", *_BY_FILE, "-m", "not soak and not alone and not heavy", "tests/cluster"),
        ("node",),
    ),
    Stage("engine", _pytest("-n", "2", *_BY_FILE, *_TORCH), ("pure",), gives_way=True),
    # With a real model in pods, and the processors for it; then what wants the node for itself.
    Stage("heavy", _pytest("-n", "2", *_BY_FILE, "-m", "heavy and not soak", "tests/cluster"), ("cluster", "engine")),
    Stage("alone", _pytest("-m", "alone and not soak", "tests/cluster"), ("heavy",)),
)
STAGES = {stage.name: stage for stage in _ALL}
