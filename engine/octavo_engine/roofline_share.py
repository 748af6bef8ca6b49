"""How near the steps of an engine come to what its machine could do: beside each step, the least that it could take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from octavo_engine.batch import Batch
from octavo_engine.roofline import Bound, Machine, ModelCost

# Below half of either bound, what is not counted takes the greater part of a step: launches, sampling, Python.
FAR_FROM_BOUNDS = 0.5
OVERHEAD = "overhead"


class RooflineShare:
    """Of each phase's time, the share that its steps need at least, for either bound; recent steps weigh most.

    Written by the step thread, read by any: a reader may see a step half counted, and the next scrape whole. Times are
    the engine's clock's.
    """

    MEMORY_SECONDS = 30.0
    """What happened in so many seconds of such steps counts, and for so long after the last of them: a scrape every
    half minute still sees a short load, and an idle engine is soon seen to be idle."""

    def __init__(self, phases: Iterable[str]) -> None:
        self._spent = dict.fromkeys(phases, 0.0)
        self._least = {(phase, bound): 0.0 for phase in self._spent for bound in Bound}
        self._until = dict.fromkeys(self._spent, -math.inf)  # the end of the last step of each
        self._limits: tuple[ModelCost, Machine] | None = None

    def know(self, cost: ModelCost, machine: Machine) -> None:
        """From now on, measure against this model's cost on this machine."""
        self._limits = cost, machine

    def step(self, phase: str, batch: Batch, seconds: float) -> None:
        """Account for a step that took `seconds`.

        A step that was faster than the machine can be shows that the machine can do more: it was busy when it was
        measured, or the weights lie in a cache. From then on its figures are what was reached.
        """
        if self._limits is None or seconds <= 0:
            return
        cost, machine = self._limits
        if phase == "decode" and not batch.num_drafted:
            work = cost.decode([piece.start + 1 for piece in batch.slices])
        else:
            pieces = [(piece.start, piece.stop) for piece in batch.slices]
            work = cost.step(pieces, batch.num_projected)
        if work.least_seconds(machine) > seconds:
            machine = machine.at_least(work, seconds)
            self._limits = cost, machine
        keep = math.exp(-seconds / self.MEMORY_SECONDS) if self._is_recent(phase, batch.at) else 0.0
        self._until[phase] = batch.at + seconds
        self._spent[phase] = self._spent[phase] * keep + seconds
        for bound, least in work.seconds(machine).items():
            self._least[phase, bound] = self._least[phase, bound] * keep + least

    def shares(self, now: float) -> dict[tuple[str, str], float]:
        """By phase and bound, from 0 to 1; 0 where there was no such step lately, or the machine is not known."""
        recent = {phase: spent for phase, spent in self._spent.items() if spent and self._is_recent(phase, now)}
        return {
            (phase, bound.value): least / recent[phase] if phase in recent else 0.0
            for (phase, bound), least in self._least.copy().items()
        }

    def _is_recent(self, phase: str, now: float) -> bool:
        return now - self._until[phase] <= self.MEMORY_SECONDS


def limiter(shares: Mapping[str, float]) -> str:
    """What keeps a phase from being faster, by its shares of either bound: `memory`, `compute` or `overhead`."""
    bound = max(Bound, key=lambda each: shares[each])
    return bound.value if shares[bound] >= FAR_FROM_BOUNDS else OVERHEAD
