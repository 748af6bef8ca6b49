"""Rank 0's Runner: a step that fails here leaves the ranks apart, so that no later one could be computed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from octavo_engine.batch import Batch, Known
from octavo_engine.errors import EngineDead
from octavo_engine.parallel.team import Team
from octavo_engine.prompt_reading import PromptReading
from octavo_engine.request import Sampled

log = logging.getLogger(__name__)


class Pending(Protocol):
    """A launched step."""

    def wait(self) -> list[Sampled]:
        """One outcome for each of `batch.sampling`."""

    def readings(self) -> Sequence[PromptReading]:
        """What was read for each of `batch.reading`."""


class Inner(Protocol):
    """A Runner that tells the team of each step."""

    def launch(self, batch: Batch) -> Pending:
        """Begin to compute the batch."""


class LeadingRunner:
    """Runs the batch with the others; whatever fails is the end of the engine, with the lost rank as its reason."""

    def __init__(self, inner: Inner, team: Team) -> None:
        self._inner, self._team = inner, team

    def launch(self, batch: Batch) -> Known:
        """Compute the batch; raises EngineDead."""
        try:
            pending = self._inner.launch(batch)
            return Known(pending.wait(), pending.readings())
        except EngineDead:
            raise
        except Exception as error:
            log.exception("a step of several ranks failed in rank 0")
            raise self._team.broken(f"a step of several ranks failed in rank 0: {type(error).__name__}") from error
