"""The step that is being decided: what is left of its tokens, and the decisions so far."""

from __future__ import annotations

from octavo_engine.batch import Batch, Read, Slice
from octavo_engine.request import PreemptReason, Request, WaitReason


class Plan:
    """Mutable while a step is decided, and then a Batch. `budget` is how many tokens it may still have."""

    def __init__(self, budget: int, now: float, evicted_before: int) -> None:
        self.budget = self._prompt_limit = budget
        self.prompt_tokens = 0  # of requests that need more than one
        self.now = now
        self.owed_blocks: int | None = None  # what admitted requests are still to get; None: not counted yet
        self._admitted: list[Request] = []
        self._preempted: list[tuple[Request, PreemptReason]] = []
        self._slices: dict[Request, Slice] = {}
        self._prompts: dict[Request, None] = {}  # of which something is to be read, or of which this may be the end
        self._evicted_before = evicted_before

    @property
    def has_preempted(self) -> bool:
        """True once somebody lost blocks in this step."""
        return bool(self._preempted)

    @property
    def prompt_budget(self) -> int:
        """How many of these tokens requests may have that need more than one."""
        return min(self._prompt_limit, self.budget)

    def singles(self) -> list[Slice]:
        """Those that compute the last token that is known of them, and nothing else, for the next one."""
        return [piece for piece in self._slices.values() if piece.count == 1 and piece.samples]

    def extend(self, piece: Slice, draft: tuple[int, ...]) -> None:
        """Let one of them compute guesses, too."""
        self._slices[piece.request] = piece._replace(count=piece.count + len(draft), draft=draft)
        self.budget -= len(draft)

    def limit_prompts(self, tokens: int) -> None:
        """Leave prompts no more than so many tokens."""
        self._prompt_limit = tokens

    def add_single(self, request: Request) -> None:
        """Compute the one token that a request misses."""
        self._slices[request] = Slice(request, request.num_computed, 1, True)
        self.budget -= 1

    def add(self, request: Request, count: int, missing: int) -> None:
        """Compute `count` of a request's `missing` tokens."""
        generates = request.generates
        self._slices[request] = Slice(request, request.num_computed, count, generates and count == missing)
        if not generates or request.num_read < request.to_read.stop:
            self._prompts[request] = None
        self.budget -= count
        if missing > 1:
            self._prompt_limit -= count
            self.prompt_tokens += count

    def admit(self, request: Request) -> None:
        """Note an admission."""
        self._admitted.append(request)

    def take_back(self, victim: Request, reason: PreemptReason) -> None:
        """A victim computes nothing in this step, even if it had its share already."""
        self._preempted.append((victim, reason))
        if (piece := self._slices.pop(victim, None)) is not None:
            self.budget += piece.count
            if victim.num_tokens - piece.start > 1:
                self._prompt_limit += piece.count
                self.prompt_tokens -= piece.count

    def batch(self, evicted: int, blocked: WaitReason | None) -> Batch:
        """The decisions as a value; single tokens come first, as the kernels expect, then those with drafts."""
        prompts = [self._slices[request] for request in self._prompts if request in self._slices]
        return Batch(
            slices=tuple(sorted(self._slices.values(), key=_place)),
            reading=tuple(read for piece in prompts if (read := Read.of(piece)) is not None),
            ending=tuple(piece.request for piece in prompts if piece.ends),
            admitted=tuple(self._admitted),
            preempted=tuple(self._preempted),
            evicted_blocks=evicted - self._evicted_before,
            at=self.now,
            blocked=blocked,
        )


def _place(piece: Slice) -> int:
    return 0 if piece.count == 1 else 2 - bool(piece.draft)
