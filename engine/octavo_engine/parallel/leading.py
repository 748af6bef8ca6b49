"""Rank 0's Runner and recordings: what fails here leaves the ranks apart, so that no later step could be computed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from octavo_engine.batch import Batch
from octavo_engine.errors import EngineDead
from octavo_engine.parallel.following import FORGET, RECORD, recorded_word, why_not
from octavo_engine.parallel.team import Team
from octavo_engine.prompt_reading import PromptReading
from octavo_engine.request import Sampled
from octavo_engine.runtime.graph_capture import NotRecorded
from octavo_engine.runtime.graphs import GraphedSteps

log = logging.getLogger(__name__)
Result = TypeVar("Result")


class Pending(Protocol):
    """A launched batch: see the engine's."""

    def wait(self) -> list[Sampled]:
        """One outcome for each of `batch.sampling`."""

    def readings(self) -> Sequence[PromptReading]:
        """What was read for each of `batch.reading`."""


class Inner(Protocol):
    """A Runner that tells the team of each step."""

    def launch(self, batch: Batch) -> Pending:
        """Begin to compute a batch."""


@dataclass(frozen=True, slots=True)
class LeadingRunner:
    """Runs batches with the others; whatever fails is the end of the engine, with the lost rank as its reason."""

    inner: Inner
    team: Team

    def launch(self, batch: Batch) -> Pending:
        """Begin to compute the batch, and have the others do so; raises EngineDead."""
        return Together(led(self.team, lambda: self.inner.launch(batch)), self.team)


@dataclass(frozen=True, slots=True)
class Together:
    """A batch that all ranks compute."""

    pending: Pending
    team: Team

    def wait(self) -> list[Sampled]:
        """One outcome for each of `batch.sampling`, in that order; raises EngineDead."""
        return led(self.team, self.pending.wait)

    def readings(self) -> Sequence[PromptReading]:
        """What was read for each of `batch.reading`, in that order."""
        return self.pending.readings()


@dataclass(frozen=True, slots=True)
class RecordedTogether:
    """Decodes that all ranks record, in the same place among their steps, or none of them keeps.

    A graph that has recorded what ranks exchange can only be replayed by all (`CudaRecorder`).
    """

    graphs: GraphedSteps
    team: Team

    def __call__(self, size: int) -> None:
        """Record a size; raises NotRecorded if a rank could not, and EngineDead when one is lost."""
        self.team.say(**{RECORD: size})
        own = led(self.team, lambda: why_not(self.graphs, size))
        word = recorded_word(size)
        told = enumerate(self.team.wait_for(word), 1)
        others = [f"rank {rank}: {words[word]}" for rank, words in told if words[word]]
        if own or others:
            self.team.say(**{FORGET: size})
            self.graphs.forget(size)
            raise NotRecorded(own or others[0])


def led(team: Team, call: Callable[[], Result]) -> Result:
    """What a step's part in rank 0 returns; raises EngineDead, with the rank that was lost as its reason if one was."""
    try:
        return call()
    except EngineDead:
        raise
    except Exception as error:
        log.exception("a step of several ranks failed in rank 0")
        raise team.broken(f"a step of several ranks failed in rank 0: {type(error).__name__}") from error
