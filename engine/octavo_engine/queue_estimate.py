"""How long the prompts ahead will take, from how fast prompts were dealt with lately. Pure: time is passed in.

What counts is not only the time in which prompts are computed, but all the time in which some are there to be computed:
decodes beside them, steps that only decode while the cache has no room for the next prompt, and the pauses between two
steps. A newcomer will see their like.
"""

from __future__ import annotations

import math

from octavo_engine.batch import SchedulerStats

MEMORY_SECONDS = 30.0
HIT_MEMORY = 0.95  # what an admission leaves of the weight of those before: about the last twenty count


class QueueEstimate:
    """Told of each step; asked whenever somebody wants to know. Seconds are the engine's clock's."""

    def __init__(self) -> None:
        self._tokens = 0.0  # prompt tokens computed, the recent past weighing most
        self._computing = 0.0  # seconds of the steps that computed them
        self._stalled = 0.0  # seconds that prompts waited beside steps that computed none, before they were computed
        self._present_stall = 0.0  # the same of the stall that goes on
        self._cached = self._looked_up = 0.0  # prompt tokens at admission, the latest weighing most
        self._until = -math.inf  # the end of the last step
        self._left_prompts = False  # whether that step left prompts to compute

    def admitted(self, prompt: int, cached: int) -> None:
        """A request of `prompt` tokens was admitted, and `cached` of them need no computing."""
        self._looked_up = self._looked_up * HIT_MEMORY + prompt
        self._cached = self._cached * HIT_MEMORY + cached

    def step(self, began: float, ended: float, computed: int, *, leaves_prompts: bool) -> None:
        """A step computed `computed` prompt tokens, and left others, waiting or half computed, or none."""
        if self._left_prompts:
            began = self._until  # the pause since the last step is part of it
        else:
            self._stalled *= math.exp(-max(0.0, began - self._until) / MEMORY_SECONDS)
            self._present_stall = 0.0
        if computed:
            self._remember(computed, ended - began)
        elif leaves_prompts:
            self._present_stall += ended - began
        self._until, self._left_prompts = ended, leaves_prompts

    def _remember(self, tokens: int, seconds: float) -> None:
        keep = math.exp(-(seconds + self._present_stall) / MEMORY_SECONDS)
        self._tokens = self._tokens * keep + tokens
        self._computing = self._computing * keep + seconds
        self._stalled = self._stalled * keep + self._present_stall
        self._present_stall = 0.0

    def seconds(self, stats: SchedulerStats, now: float) -> float:
        """How long all prompts of `stats` will take; 0 when there are none.

        While nothing is known, and while nothing moves, the best guess is that it lasts as long again as it has lasted.
        """
        ahead = stats.waiting_prompt_tokens * (1.0 - self._hit_share) + stats.running_prompt_tokens
        if not ahead:
            return 0.0
        if not self._tokens:
            return 0.0 if stats.oldest_arrival is None else max(0.0, now - stats.oldest_arrival)
        pace = (self._computing + self._stalled + self._present_stall) / self._tokens
        return max(ahead * pace, self._present_stall)

    @property
    def _hit_share(self) -> float:
        return self._cached / self._looked_up if self._looked_up else 0.0
