"""Numbers that change from step to step, for a step that is recorded once and replayed.

A recorded launch keeps the numbers that it was launched with. What follows from a step's lengths is therefore read from
the device, and written there before each replay.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Rule = Callable[[int], int]
"""From the tokens of a step's longest sequence to a number, below 2**31. Rules that are equal give the same."""

MOST_RULES = 16  # of one recorded step: it has one for each way to cut contexts, and so for each window


class RecordedNumbers:
    """The numbers of one recorded step, in its device's memory."""

    def __init__(self, device: torch.device) -> None:
        self._cells = torch.zeros(MOST_RULES, dtype=torch.int32, device=device)
        self._values: dict[Rule, int] = {}  # as the cells have them, one after another
        self._longest = 1

    def cell(self, rule: Rule) -> Tensor:
        """Where the step finds the number: int32 `[1]`. A rule's first call must not be recorded, for it writes."""
        if rule not in self._values:
            assert len(self._values) < MOST_RULES
            self._write(rule, len(self._values), rule(self._longest))
        place = list(self._values).index(rule)
        return self._cells[place : place + 1]

    def update(self, longest: int) -> None:
        """The next replay is of a step whose longest sequence has so many tokens. The host waits for nothing."""
        self._longest = longest
        for place, (rule, value) in enumerate(list(self._values.items())):
            if (new := rule(longest)) != value:
                self._write(rule, place, new)

    def _write(self, rule: Rule, place: int, value: int) -> None:
        self._values[rule] = value
        self._cells[place].fill_(value)
