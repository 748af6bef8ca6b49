"""Whom the engine reports to: the metrics, the history and, when asked for, the log of decisions."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.batch import Batch
from octavo_engine.engine import Recorder
from octavo_engine.history.decisions import DecisionLog
from octavo_engine.history.recent import History
from octavo_engine.metrics import Metrics
from octavo_engine.request import Request


class Reporting:
    """The engine's Recorder. Passes on what is reported once `counting` is true: the warm-up is not counted."""

    def __init__(self, metrics: Metrics, history: History, decisions: DecisionLog | None = None) -> None:
        self._metrics = metrics
        self._history = history
        self._all: list[Recorder] = [metrics, history] if decisions is None else [metrics, history, decisions]
        self._decisions = decisions
        self.counting = False

    def step(self, batch: Batch, seconds: float) -> None:
        """A batch was computed."""
        if self.counting:
            for recorder in self._all:
                recorder.step(batch, seconds)

    def token(self, request: Request, at: float) -> None:
        """A token was appended: the metrics alone count these."""
        if self.counting:
            self._metrics.token(request, at)

    def finished(self, request: Request, at: float) -> None:
        """A request ended."""
        if self.counting:
            for recorder in self._all:
                recorder.finished(request, at)

    def refused(self, requests: Sequence[Request]) -> None:
        """Requests were refused at the door: told by the server, from its own thread."""
        self._history.refused(requests)
        if self._decisions is not None:
            self._decisions.refused(requests)
