"""What one step does, decided before anything is done: the contract between scheduler, runner and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo_engine.request import PreemptReason, Request, WaitReason


@dataclass(frozen=True, slots=True)
class Slice:
    """Tokens `[start, start + count)` of one request, to be computed in this step.

    `samples`: the slice reaches the last token known when it was planned, so that its logits give the next one.
    """

    request: Request
    start: int
    count: int
    samples: bool

    @property
    def stop(self) -> int:
        """One past the last token computed."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's work, in the order its tokens are laid out, and the decisions that led to it."""

    slices: tuple[Slice, ...] = ()
    admitted: tuple[Request, ...] = ()
    preempted: tuple[tuple[Request, PreemptReason], ...] = ()
    evicted_blocks: int = 0
    at: float = 0.0  # seconds on the engine's clock, when it was decided
    blocked: WaitReason | None = None  # what holds those that still wait; None: nobody waits

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(piece.count for piece in self.slices)

    @property
    def sampling(self) -> tuple[Slice, ...]:
        """The slices that produce a token, in batch order."""
        return tuple(piece for piece in self.slices if piece.samples)

    @property
    def kind(self) -> str:
        """`decode`, `prefill` or `mixed`: the label under which the step's time is counted."""
        decodes = sum(piece.count == 1 and piece.start >= piece.request.num_prompt for piece in self.slices)
        if decodes == len(self.slices):
            return "decode"
        return "mixed" if decodes else "prefill"


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot of the scheduler, taken between steps."""

    waiting: Mapping[WaitReason, int] = field(default_factory=dict)
    waiting_prompt_tokens: int = 0
    running_prompt_tokens: int = 0  # of admitted prompts, those that are not computed yet
    running: int = 0
    oldest_arrival: float | None = None  # of the waiting requests, seconds on the engine's clock
    free_blocks: int = 0
    cached_blocks: int = 0  # findable prefixes that nobody uses: free on demand
    used_blocks: int = 0
    unused_slots: int = 0  # token slots in used blocks that hold no token yet
    block_size: int = 1  # token slots in a block

    @property
    def total_blocks(self) -> int:
        """All blocks of the pool."""
        return self.free_blocks + self.cached_blocks + self.used_blocks

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that running requests hold, 0 to 1."""
        return self.used_blocks / self.total_blocks if self.total_blocks else 0.0

    @property
    def kv_waste(self) -> float:
        """Share of the token slots in used blocks that hold no token, 0 to 1."""
        slots = self.used_blocks * self.block_size
        return self.unused_slots / slots if slots else 0.0
