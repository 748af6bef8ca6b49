"""What one step does, decided before anything is done: the contract between scheduler, runner and metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from octavo_engine.counted import counted
from octavo_engine.prompt_reading import PromptReading
from octavo_engine.request import PreemptReason, Request, Sampled, WaitReason

SCORED_ROWS = 64
"""Positions of prompts whose logits are in memory at the same time, where their log-probabilities are asked for: enough
to read the output projection's weights seldom, and few beside a step's other tensors."""


class Slice(NamedTuple):
    """Tokens `[start, start + count)` of one request, to be computed in this step.

    `samples`: the slice reaches the last token known when it was planned, and its logits give the next one.
    `draft`: its last tokens, which are guesses. The logits of each give one more token, if all of them have come true.
    A step makes one for each request, and a named tuple is made in half the time of a frozen dataclass.
    """

    request: Request
    start: int
    count: int  # type: ignore[assignment]  # hides a method of tuples that nobody needs here
    samples: bool
    draft: tuple[int, ...] = ()

    @property
    def stop(self) -> int:
        """One past the last token computed."""
        return self.start + self.count

    @property
    def known(self) -> int:
        """Tokens computed that are no guesses."""
        return self.count - len(self.draft)

    @property
    def tokens(self) -> list[int]:
        """What is computed, `count` token ids."""
        return [*self.request.tokens[self.start : self.start + self.known], *self.draft]

    @property
    def num_outcomes(self) -> int:
        """Positions whose logits give a token."""
        return 1 + len(self.draft) if self.samples else 0

    @property
    def ends(self) -> bool:
        """True when this is the end of a request that generates nothing."""
        return not self.request.generates and self.stop == self.request.num_prompt


class Read(NamedTuple):
    """Positions `[start, stop)` of one request, computed in this step, that are among those to be read."""

    request: Request
    start: int
    stop: int

    @classmethod
    def of(cls, piece: Slice) -> Read | None:
        """What is to be read of a slice, if anything is: nothing is read twice."""
        request = piece.request
        start, stop = max(piece.start, request.num_read), min(piece.stop, request.to_read.stop)
        return cls(request, start, stop) if start < stop else None

    @property
    def scores(self) -> bool:
        """True when logits are read, and not hidden states."""
        return self.request.pooling is None


@dataclass(frozen=True)
class Batch:
    """One step's work, in the order its tokens are laid out, and the decisions that led to it.

    What is derived from the slices is counted once, when it is first asked for.
    """

    slices: tuple[Slice, ...] = ()
    reading: tuple[Read, ...] = ()  # of prompts of which more is wanted than their K/V
    ending: tuple[Request, ...] = ()  # those that generate nothing, and whose prompt is computed with this step
    admitted: tuple[Request, ...] = ()
    preempted: tuple[tuple[Request, PreemptReason], ...] = ()
    evicted_blocks: int = 0
    at: float = 0.0  # seconds on the engine's clock, when it was decided
    blocked: WaitReason | None = None  # what holds those that still wait; None: nobody waits

    @cached_property
    def num_singles(self) -> int:
        """Slices of one token, which come first."""
        return bisect_left(self.slices, True, key=lambda piece: piece.count > 1)

    @cached_property
    def num_continuing(self) -> int:
        """Slices of one known token, with a draft or without, which come before the others: the decodes, and perhaps
        the last token of a prompt."""
        return bisect_left(self.slices, True, lo=self.num_singles, key=lambda piece: piece.known > 1)

    @cached_property
    def num_drafted(self) -> int:
        """Tokens computed that are guesses."""
        return sum(len(piece.draft) for piece in self.slices[self.num_singles : self.num_continuing])

    @cached_property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return self.num_singles + sum(piece.count for piece in self.slices[self.num_singles :])

    @cached_property
    def sampling(self) -> tuple[Slice, ...]:
        """The slices that produce tokens, in batch order."""
        return tuple(piece for piece in self.slices if piece.samples)

    @cached_property
    def num_projected(self) -> int:
        """Positions whose logits are computed."""
        sampled = len(self.sampling) + self.num_drafted
        return sampled + sum(read.stop - read.start for read in self.reading if read.scores)

    @cached_property
    def kind(self) -> str:
        """`decode`, `prefill` or `mixed`: the label under which the step's time is counted."""
        decodes = sum(piece.start >= piece.request.num_prompt for piece in self.slices[: self.num_continuing])
        if decodes == len(self.slices):
            return "decode"
        return "mixed" if decodes else "prefill"

    @property
    def words(self) -> str:
        """Its work for people, and no word of what is asked: `a decode step of 8 sequences of up to 512 tokens`."""
        longest = max((piece.stop for piece in self.slices), default=0)
        many = f"{counted(len(self.slices), 'sequence')} of up to {counted(longest, 'token')}"
        if self.kind == "decode":
            return f"a decode step of {many}"
        return f"a step with prompt tokens ({counted(self.num_tokens, 'token')} of {many})"


class Known(NamedTuple):
    """The outcomes of a step that is computed: of `batch.sampling`, and of `batch.reading`."""

    outcomes: list[Sampled]
    read: Sequence[PromptReading] = ()

    def wait(self) -> list[Sampled]:
        """At once."""
        return self.outcomes

    def readings(self) -> Sequence[PromptReading]:
        """At once."""
        return self.read


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """A snapshot of the scheduler, taken between steps."""

    waiting: Mapping[WaitReason, int] = field(default_factory=dict)
    waiting_prompt_tokens: int = 0
    waiting_answer_tokens: int = 0  # the most that those who wait may generate
    running_prompt_tokens: int = 0  # of admitted prompts, those that are not computed yet
    running: int = 0
    seats: int = 1  # requests that may run at the same time
    step_tokens: int = 1  # that a step may compute
    oldest_arrival: float | None = None  # of the waiting requests, seconds on the engine's clock
    blocked: WaitReason | None = None  # what holds those that a step has looked at; None: nobody waits
    decided: float = 0.0  # when the present step was decided, the same clock
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
