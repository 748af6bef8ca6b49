"""A few scrapes of `/metrics`, and what they say about the time between the first and the last. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from octavo_engine.explain.scrape import Scrape

PHASES = ("prefill", "decode", "mixed")
BOUNDS = ("memory", "compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What happened while an engine was looked at. Shares are from 0 to 1."""

    seconds: float
    running: float  # requests, on average
    always_running: bool  # whether each look found one
    waiting: Mapping[str, float]  # by reason, on average
    kv_usage: float  # on average
    preempted: float
    rejected: float  # because the queue was full
    generated: float  # tokens
    step_seconds: Mapping[str, float]  # by phase
    shares: Mapping[str, Mapping[str, float]]  # of the roofline, by phase and bound

    @property
    def busy(self) -> float:
        """The share of the time in which a step was computed."""
        return min(1.0, sum(self.step_seconds.values()) / self.seconds)

    @property
    def main_phase(self) -> str:
        """The kind of step that took most of the time."""
        return max(PHASES, key=lambda phase: self.step_seconds.get(phase, 0.0))


def between(scrapes: Sequence[Scrape]) -> Facts:
    """The facts of at least two scrapes of one process."""
    first, last = scrapes[0], scrapes[-1]

    def grown(name: str) -> float:
        return max(0.0, last.total(name) - first.total(name))  # less, when the process was started anew

    before, after = (scrape.by("octavo_step_seconds_sum", "kind") for scrape in (first, last))
    reasons = {reason for scrape in scrapes for reason in scrape.by("octavo_requests_waiting", "reason")}
    running = [scrape.total("octavo_requests_running") for scrape in scrapes]
    rejected = [scrape.by("octavo_requests_rejected_total", "reason") for scrape in (first, last)]
    return Facts(
        seconds=last.at - first.at,
        running=_mean(running),
        always_running=min(running) > 0,
        waiting={
            reason: _mean(scrape.by("octavo_requests_waiting", "reason").get(reason, 0.0) for scrape in scrapes)
            for reason in sorted(reasons)
        },
        kv_usage=_mean(scrape.total("octavo_kv_cache_usage_ratio") for scrape in scrapes),
        preempted=grown("octavo_preemptions_total"),
        rejected=max(0.0, _full(rejected[1]) - _full(rejected[0])),
        generated=grown("octavo_generation_tokens_total"),
        step_seconds={phase: max(0.0, after.get(phase, 0.0) - before.get(phase, 0.0)) for phase in PHASES},
        shares={phase: _shares(last, phase) for phase in PHASES},
    )


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def _full(rejected: Mapping[str, float]) -> float:
    return sum(value for reason, value in rejected.items() if reason.startswith("queue"))


def _shares(scrape: Scrape, phase: str) -> dict[str, float]:
    return {bound: scrape.value("octavo_roofline_ratio", phase=phase, bound=bound) for bound in BOUNDS}
