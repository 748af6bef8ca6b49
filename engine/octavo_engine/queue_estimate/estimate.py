"""The estimate: the prompt tokens ahead, and the steps until there is a place for whom they belong to. Pure.

Time is passed in. Written by the step thread and read by any: a reader may see a step half counted.
"""

from __future__ import annotations

import math

from octavo_engine.batch import SchedulerStats
from octavo_engine.queue_estimate.answers import Answers, expected
from octavo_engine.queue_estimate.seats import Seats
from octavo_engine.queue_estimate.speed import Expected, Speed
from octavo_engine.request import FinishReason, Request, Status

HIT_MEMORY = 0.95  # what an admission leaves of the weight of those before: about the last twenty count
GAIN_MEMORY = 0.99  # the same of a step with decodes


class QueueEstimate:
    """Told of each step; asked whenever somebody wants to know. Seconds are the engine's clock's."""

    def __init__(self) -> None:
        self._speed, self._answers = Speed(), Answers()
        self._running: dict[Request, None] = {}  # those that were admitted and have not ended
        self._cached = self._looked_up = 0.0  # prompt tokens at admission, the latest weighing most
        self._decoded = self._given = 0.0  # places of decodes in steps, and tokens that these gave; the latest the most
        self._until = -math.inf  # the end of the last step
        self._left_prompts = False  # whether that step left prompts to compute

    def expect(self, expected: Expected) -> None:
        """What steps should take on this machine: all that is known before the first."""
        self._speed.expect(expected)

    def admitted(self, request: Request) -> None:
        """A request was admitted for the first time; what is cached of its prompt needs no computing."""
        self._looked_up = self._looked_up * HIT_MEMORY + request.num_prompt
        self._cached = self._cached * HIT_MEMORY + request.num_cached
        if request.status is not Status.FINISHED:  # between the plan and its report
            self._running[request] = None

    def finished(self, request: Request) -> None:
        """A request has ended, whether it was admitted or not."""
        self._running.pop(request, None)
        if request.finish_reason in (FinishReason.STOP, FinishReason.LENGTH) and request.generates:
            self._answers.ended(request.num_output, stopped=request.finish_reason is FinishReason.STOP)

    def step(self, began: float, ended: float, *, decodes: int, computed: int, leaves_prompts: bool) -> None:
        """A step computed `computed` prompt tokens beside so many decodes, and left others, waiting or half computed,
        or none."""
        if self._left_prompts:
            began = min(began, self._until)  # the pause since the last step is part of it
        self._speed.observe(ended - began, decodes=decodes, tokens=computed)
        if decodes:
            self._decoded = self._decoded * GAIN_MEMORY + decodes
            self._given = self._given * GAIN_MEMORY + decodes
        self._until, self._left_prompts = ended, leaves_prompts

    def accepted(self) -> None:
        """A guess of the step that was told of last has come true: a token without a step of its own."""
        self._given += 1

    def seconds(self, stats: SchedulerStats, now: float) -> float:
        """How long all prompts of `stats` will take; 0 when there are none.

        While nothing is known, and while no step ends, the best guess is that it lasts as long again as it has lasted.
        """
        tokens = stats.waiting_prompt_tokens * (1.0 - self._hit_share) + stats.running_prompt_tokens
        if not tokens:
            return 0.0
        waited = 0.0 if stats.oldest_arrival is None else max(0.0, now - stats.oldest_arrival)
        if not self._speed.known:
            return waited
        return max(self._foreseen(stats, tokens), min(waited, now - self._until))

    def _foreseen(self, stats: SchedulerStats, tokens: float) -> float:
        running = list(self._running)  # another thread changes it
        chance = self._answers.chance([each.num_output for each in running])
        waiting = sum(stats.waiting.values())
        answer = expected(chance, stats.waiting_answer_tokens / waiting) if waiting else 0.0
        each_left = [expected(chance, each.params.max_tokens - each.num_output) for each in running]
        left = sum(each_left) / len(each_left) if each_left else answer
        seats = Seats.of(stats, left, answer)
        gain = self._given / self._decoded if self._decoded else 1.0
        steps = max(tokens / stats.step_tokens, seats.steps(left / gain, answer / gain))
        beside = min(seats.all, stats.running + waiting * min(1.0, answer / gain / steps))
        return self._speed.seconds(steps, decodes=beside, tokens=tokens)

    @property
    def _hit_share(self) -> float:
        return self._cached / self._looked_up if self._looked_up else 0.0
