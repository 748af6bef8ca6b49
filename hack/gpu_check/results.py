"""What was measured, and what it means beside the device's limits. Plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gpu_check.loads import Load
from octavo_engine.roofline import Machine, ModelCost, Work, best_decode

OCTAVO, EAGER, TRANSFORMERS = "octavo", "octavo without graphs", "transformers"


@dataclass(frozen=True)
class Timing:
    """One contender with one load, in seconds."""

    contender: str
    load: Load
    prefill_seconds: float  # until each request had its first token
    decode_seconds: float  # of all steps after that

    @property
    def step_seconds(self) -> float:
        """Mean of one step."""
        return self.decode_seconds / self.load.steps

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together, in steps of decodes alone."""
        return self.load.batch / self.step_seconds

    @property
    def prompt_tokens_per_second(self) -> float:
        """Of the prompts."""
        return self.load.batch * self.load.prompt / self.prefill_seconds


@dataclass(frozen=True)
class Missed:
    """A load that gave no figures, and why."""

    contender: str
    load: Load
    reason: str
    faulty: bool = False  # it should have given some


@dataclass(frozen=True)
class Shares:
    """Of the device's limits, 1 being all."""

    bandwidth: float  # of a decode step
    flops: float
    prefill_flops: float


def shares(timing: Timing, cost: ModelCost, machine: Machine) -> Shares:
    """What the least work that the load needs says of the time that it took."""
    load = timing.load
    step = cost.decode([load.context] * load.batch)
    prompts = cost.step([(0, load.prompt)] * load.batch, samples=load.batch)
    return Shares(
        bandwidth=step.bytes / timing.step_seconds / machine.bandwidth,
        flops=step.flops / timing.step_seconds / machine.flops,
        prefill_flops=_rate(prompts, timing.prefill_seconds) / machine.flops,
    )


def _rate(work: Work, seconds: float) -> float:
    return work.flops / seconds


@dataclass(frozen=True)
class Suite:
    """What tests/gpu said."""

    passed: int
    failed: int
    skipped: int
    seconds: float
    failures: tuple[str, ...] = ()  # names, or why there are no tests


@dataclass(frozen=True)
class Tokens:
    """Greedy tokens beside transformers', in float32."""

    compared: int
    equal: int
    fault: str = ""  # why nothing could be compared


@dataclass(frozen=True)
class Report:
    """Everything."""

    machine: Machine
    facts: dict[str, Any]  # of device and versions
    sizes: dict[str, Any]  # of the model
    cost: ModelCost
    tests: Suite
    tokens: Tokens
    speed: Sequence[Timing | Missed]
    seconds: float
    complete: bool = True  # False: there was more to measure when this was written

    @property
    def right(self) -> bool:
        """True if nothing that was computed was wrong, and nothing failed. Speed is no matter of right and wrong."""
        failed = any(isinstance(each, Missed) and each.faulty for each in self.speed)
        return not self.tests.failed and not failed and 0 < self.tokens.compared == self.tokens.equal

    def timing(self, contender: str, load: Load) -> Timing | None:
        """The figures of one, if there are any."""
        timings = (each for each in self.speed if isinstance(each, Timing))
        return next((each for each in timings if (each.contender, each.load) == (contender, load)), None)

    @property
    def loads(self) -> list[Load]:
        """Each once, in order."""
        return list(dict.fromkeys(each.load for each in self.speed))

    def lead(self, load: Load) -> float | None:
        """How many times transformers' tokens a second Octavo gives; None without both."""
        ours, theirs = self.timing(OCTAVO, load), self.timing(TRANSFORMERS, load)
        return None if ours is None or theirs is None else ours.tokens_per_second / theirs.tokens_per_second

    def best(self, load: Load) -> float:
        """Tokens a second that no implementation can pass."""
        return best_decode(self.cost, self.machine, batch=load.batch, context=load.context).tokens_per_second

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "right": self.right,
            "complete": self.complete,
            "machine": self.facts | {"bandwidth": self.machine.bandwidth, "flops": self.machine.flops},
            "model": self.sizes,
            "tests": asdict(self.tests),
            "tokens": asdict(self.tokens),
            "speed": [self._entry(each) for each in self.speed],
            "seconds": self.seconds,
        }

    def _entry(self, each: Timing | Missed) -> dict[str, Any]:
        load = {"contender": each.contender, **asdict(each.load)}
        if isinstance(each, Missed):
            return load | {"missed": each.reason}
        return load | {
            "prefill_seconds": each.prefill_seconds,
            "step_seconds": each.step_seconds,
            "tokens_per_second": each.tokens_per_second,
            "prompt_tokens_per_second": each.prompt_tokens_per_second,
            "best_tokens_per_second": self.best(each.load),
            "shares": asdict(shares(each, self.cost, self.machine)),
            "over_transformers": self.lead(each.load) if each.contender == OCTAVO else None,
        }
