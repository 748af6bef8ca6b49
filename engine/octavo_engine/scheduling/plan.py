"""The step that is being decided: what is left of its tokens, and the decisions so far."""

from __future__ import annotations

from octavo_engine.batch import Batch, Slice
from octavo_engine.request import PreemptReason, Request, WaitReason


class Plan:
    """Mutable while a step is decided, and then a Batch.

    `budget` counts all tokens of the step; `prompt_budget` those of requests that need more than one.
    """

    def __init__(self, budget: int, now: float, evicted_before: int) -> None:
        self.budget = self.prompt_budget = budget
        self.now = now
        self.owed_blocks: int | None = None  # what admitted requests are still to get; None: not counted yet
        self._admitted: list[Request] = []
        self._preempted: list[tuple[Request, PreemptReason]] = []
        self._slices: dict[Request, Slice] = {}
        self._evicted_before = evicted_before

    @property
    def has_preempted(self) -> bool:
        """True once somebody lost blocks in this step."""
        return bool(self._preempted)

    def limit_prompts(self, tokens: int) -> None:
        """Leave prompts no more than so many tokens."""
        self.prompt_budget = min(self.prompt_budget, tokens)

    def add(self, request: Request, count: int, missing: int) -> None:
        """Compute `count` of a request's `missing` tokens."""
        self._slices[request] = Slice(request, request.num_computed, count, count == missing)
        self.budget -= count
        if missing > 1:
            self.prompt_budget -= count
        self.prompt_budget = min(self.prompt_budget, self.budget)

    def admit(self, request: Request) -> None:
        """Note an admission."""
        self._admitted.append(request)

    def take_back(self, victim: Request, reason: PreemptReason) -> None:
        """A victim computes nothing in this step, even if it had its share already."""
        self._preempted.append((victim, reason))
        self.owed_blocks = None
        if (piece := self._slices.pop(victim, None)) is not None:
            self.budget += piece.count
            is_prompt = piece.count > 1 or not piece.samples
            self.prompt_budget = min(self.prompt_budget + piece.count * is_prompt, self.budget)

    def batch(self, evicted: int, blocked: WaitReason | None) -> Batch:
        """The decisions as a value; single tokens come first, as the kernels expect."""
        return Batch(
            slices=tuple(sorted(self._slices.values(), key=lambda piece: piece.count > 1)),
            admitted=tuple(self._admitted),
            preempted=tuple(self._preempted),
            evicted_blocks=evicted - self._evicted_before,
            at=self.now,
            blocked=blocked,
        )
