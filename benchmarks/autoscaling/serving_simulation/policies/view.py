"""What any policy may look at, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo_operator.autoscaling import Load


@dataclass(frozen=True)
class PodView:
    """One pod that is not terminating. `load` is None where nothing was to be had: not ready yet, or silent."""

    name: str
    ready: bool
    unschedulable: bool = False
    load: Load | None = None


@dataclass(frozen=True)
class View:
    """All pods at one look. `replicas` is the count that the Deployment asks for."""

    pods: tuple[PodView, ...]
    replicas: int

    @property
    def ready(self) -> int:
        """Pods that serve."""
        return sum(pod.ready for pod in self.pods)

    @property
    def loads(self) -> list[Load]:
        """What the pods that answered say."""
        return [pod.load for pod in self.pods if pod.load is not None]


@dataclass(frozen=True)
class Choice:
    """How many replicas from now on, and which pod should go first when there are to be fewer."""

    replicas: int
    victim: str | None = None


class Policy(Protocol):
    """A scaling policy; it keeps its own memory. `period` is the seconds between two looks."""

    name: str
    period: float

    def choose(self, view: View, now: float) -> Choice: ...
