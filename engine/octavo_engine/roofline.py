"""The least that a step must move and compute, and how long a machine takes for that. Pure numbers.

A step takes at least as long as its bytes take at the memory's speed, and at least as long as its products take at the
processor's: the longer of the two is its bound (Williams, Waterman, Patterson: Roofline, 2009). Counted are what no
implementation can avoid: every weight read once, K and V of the tokens before read once and of the new ones written
once, the products of weights and of attention. Norms, activations between layers and sampling are left out, so a real
step takes longer, and the share that it reaches is honest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Bound(StrEnum):
    """What keeps a step from being faster."""

    MEMORY = "memory"  # reading weights, K and V
    COMPUTE = "compute"  # multiplying


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a device can do at best."""

    name: str
    bandwidth: float  # bytes a second, read
    flops: float  # operations a second, in products of the weights' type

    @property
    def ridge(self) -> float:
        """Operations a byte above which a step is bound by computing."""
        return self.flops / self.bandwidth

    def at_least(self, work: Work, seconds: float) -> Machine:
        """The same machine, which has done that work in so many seconds: it can do that much."""
        return replace(
            self, bandwidth=max(self.bandwidth, work.bytes / seconds), flops=max(self.flops, work.flops / seconds)
        )


@dataclass(frozen=True, slots=True)
class Work:
    """What a step moves and computes at least."""

    bytes: float = 0.0
    flops: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.flops + other.flops)

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.bytes

    def seconds(self, machine: Machine) -> dict[Bound, float]:
        """How long the machine takes at least, for either reason."""
        return {Bound.MEMORY: self.bytes / machine.bandwidth, Bound.COMPUTE: self.flops / machine.flops}

    def least_seconds(self, machine: Machine) -> float:
        """How long the machine takes at least."""
        return max(self.bytes / machine.bandwidth, self.flops / machine.flops)

    def bound(self, machine: Machine) -> Bound:
        """The reason that weighs more."""
        seconds = self.seconds(machine)
        return max(Bound, key=seconds.__getitem__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """What one model costs, by cause; `model.costs` makes it from a spec."""

    step_bytes: int  # weights that every step reads, whatever it computes
    head_bytes: int  # the output projection: read by a step that samples
    row_bytes: int  # one token's row of the embedding
    token_flops: int  # products of one token with all layers' weights
    end_flops: int = 0  # of these, those behind the last attention, which only a token that gives another needs
    head_flops: int  # of one sampled token with the output projection
    layer_kv_bytes: int  # K and V of one token in one layer
    pair_flops: int  # one query that looks at one key and its value, in one layer, all heads
    windows: tuple[tuple[int | None, int], ...]  # (sliding window in tokens, layers that have it)

    def step(self, pieces: Iterable[tuple[int, int]], samples: int) -> Work:
        """The work of a step over `pieces`, each the tokens `[start, stop)` of one sequence; `samples` give a token."""
        tokens = moved = pairs = 0
        for start, stop in pieces:
            tokens += stop - start
            for window, layers in self.windows:
                first = 0 if window is None else max(0, start + 1 - window)
                moved += layers * (stop - first)  # those before are read, the new ones written
                pairs += layers * _pairs(start, stop, window)
        return self._work(tokens, moved, pairs, samples)

    def decode(self, contexts: Sequence[int]) -> Work:
        """One token for each sequence, which then has so many tokens: `step` for that case, a fifth of its time."""
        if len(self.windows) > 1 or self.windows[0][0] is not None:
            return self.step([(context - 1, context) for context in contexts], samples=len(contexts))
        seen = self.windows[0][1] * sum(contexts)
        return self._work(len(contexts), seen, seen, len(contexts))

    def _work(self, tokens: int, moved: int, pairs: int, samples: int) -> Work:
        """`moved`: tokens whose K and V are read or written; `pairs`: of a query and a key; both summed over layers."""
        moved_bytes = self.step_bytes + tokens * self.row_bytes + moved * self.layer_kv_bytes
        flops = tokens * self.token_flops - max(0, tokens - samples) * self.end_flops + pairs * self.pair_flops
        return Work(moved_bytes + (self.head_bytes if samples else 0), flops + samples * self.head_flops)


def _pairs(start: int, stop: int, window: int | None) -> int:
    """How many tokens the queries `[start, stop)` look at in all: each at those before it and itself."""
    if window is None or stop <= window:
        return (stop - start) * (start + 1 + stop) // 2
    rising = max(0, window - start)  # queries that do not fill their window yet
    return rising * (start + 1 + window) // 2 + (stop - start - rising) * window


@dataclass(frozen=True, slots=True)
class Rate:
    """The best that a machine can do with some work: an upper limit, not a forecast."""

    tokens: int
    seconds: float
    bound: Bound
    work: Work

    @property
    def tokens_per_second(self) -> float:
        """Tokens over seconds."""
        return self.tokens / self.seconds


def best_decode(cost: ModelCost, machine: Machine, *, batch: int, context: int) -> Rate:
    """One step of `batch` sequences with `context` tokens each."""
    work = cost.decode([context] * batch)
    return Rate(batch, work.least_seconds(machine), work.bound(machine), work)


def best_prefill(cost: ModelCost, machine: Machine, *, prompt: int, budget: int) -> Rate:
    """A prompt alone, in chunks of at most `budget` tokens; its bound is that of the greater part of the time."""
    starts = range(0, prompt, budget)
    steps = [cost.step([(at, min(prompt, at + budget))], samples=int(at == starts[-1])) for at in starts]
    spent = dict.fromkeys(Bound, 0.0)
    for work in steps:
        spent[work.bound(machine)] += work.least_seconds(machine)
    total = sum(steps, Work())
    return Rate(prompt, sum(spent.values()), max(Bound, key=spent.__getitem__), total)


def turning_batch(cost: ModelCost, machine: Machine, context: int) -> float | None:
    """The batch from which on decoding is bound by computing; None when reading K and V alone takes longer than it.

    Weights are read once for all sequences, K and V for each: what a further sequence adds must be more computing than
    reading, or no batch is large enough.
    """
    none, one = cost.decode([]), cost.decode([context])
    fixed = none.bytes + cost.head_bytes
    added = Work(one.bytes - fixed, one.flops)
    spared = added.flops / machine.flops - added.bytes / machine.bandwidth
    return fixed / machine.bandwidth / spared if spared > 0 else None
