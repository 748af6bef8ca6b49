"""A few scrapes of `/metrics`, and what they say about the time between the first and the last. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from octavo_engine.diagnosis.scrape import Between, Scrape

PHASES = ("prefill", "decode", "mixed")
BOUNDS = ("memory", "compute")


@dataclass(frozen=True, slots=True)
class Spread:
    """What was observed meanwhile: how often, the median and the 99th percentile, within their buckets."""

    count: float
    half: float
    most: float


@dataclass(frozen=True, slots=True)
class Settings:
    """How the engine was started, as far as it tells; None where it does not."""

    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    chunked: bool | None = None
    prefix_caching: bool | None = None


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
    steps: Mapping[str, float] = field(default_factory=dict)  # how many, by phase
    first_token: Spread | None = None  # seconds; None where there was none
    inter_token: Spread | None = None  # seconds
    prompts: Spread | None = None  # tokens, of the requests admitted
    found: float = 0.0  # prompt tokens that the prefix cache had
    missed: float = 0.0  # and those that it had not
    evicted: float = 0.0  # cached blocks given up
    throttled: float = 0.0  # share of the CPU limit's periods in which it stopped the process
    waited: Mapping[str, float] = field(default_factory=dict)  # share of the time, of the step thread, by what for
    settings: Settings = field(default_factory=Settings)

    @property
    def busy(self) -> float:
        """The share of the time in which a step was computed."""
        return min(1.0, sum(self.step_seconds.values()) / self.seconds)

    @property
    def main_phase(self) -> str:
        """The kind of step that took most of the time."""
        return max(PHASES, key=lambda phase: self.step_seconds.get(phase, 0.0))

    @property
    def prompt_share(self) -> float:
        """The share of all steps' time that went to those with prompts in them."""
        whole = sum(self.step_seconds.values())
        return 1 - self.step_seconds.get("decode", 0.0) / whole if whole else 0.0

    def step_mean(self, phase: str) -> float | None:
        """Seconds that a step of this kind took; None where there was none."""
        count = self.steps.get(phase, 0.0)
        return self.step_seconds[phase] / count if count else None


def between(scrapes: Sequence[Scrape]) -> Facts:
    """The facts of at least two scrapes of one process."""
    first, last = scrapes[0], scrapes[-1]
    seen = Between(first, last)
    running = [scrape.total("octavo_requests_running") for scrape in scrapes]
    lookups = _grown_by(seen, "octavo_prefix_cache_tokens_total", "result")
    return Facts(
        seconds=seen.seconds,
        running=_mean(running),
        always_running=min(running) > 0,
        waiting=_waiting(scrapes),
        kv_usage=_mean(scrape.total("octavo_kv_cache_usage_ratio") for scrape in scrapes),
        preempted=_grown(seen, "octavo_preemptions_total"),
        rejected=_full(_grown_by(seen, "octavo_requests_rejected_total", "reason")),
        generated=_grown(seen, "octavo_generation_tokens_total"),
        step_seconds=_by_phase(_grown_by(seen, "octavo_step_seconds_sum", "kind")),
        shares={phase: _shares(scrapes, phase) for phase in PHASES},
        steps=_by_phase(_grown_by(seen, "octavo_step_seconds_count", "kind")),
        first_token=_spread(seen, "octavo_time_to_first_token_seconds"),
        inter_token=_spread(seen, "octavo_inter_token_latency_seconds"),
        prompts=_spread(seen, "octavo_request_prompt_tokens"),
        found=lookups.get("hit", 0.0),
        missed=lookups.get("miss", 0.0),
        evicted=_grown(seen, "octavo_prefix_cache_evicted_blocks_total"),
        throttled=_throttled(_grown_by(seen, "octavo_cpu_periods_total", "result")),
        waited=_shares_of_time(_grown_by(seen, "octavo_step_thread_wait_seconds_total", "resource"), seen.seconds),
        settings=_settings(last),
    )


def _grown(seen: Between, name: str) -> float:
    """The increase over all labels; nothing, when the process was started anew."""
    return max(0.0, seen.after.total(name) - seen.before.total(name))


def _grown_by(seen: Between, name: str, label: str) -> dict[str, float]:
    before, after = seen.before.by(name, label), seen.after.by(name, label)
    return {value: max(0.0, number - before.get(value, 0.0)) for value, number in after.items()}


def _waiting(scrapes: Sequence[Scrape]) -> dict[str, float]:
    looks = [scrape.by("octavo_requests_waiting", "reason") for scrape in scrapes]
    reasons = {reason for look in looks for reason in look}
    return {reason: _mean(look.get(reason, 0.0) for look in looks) for reason in sorted(reasons)}


def _by_phase(values: Mapping[str, float]) -> dict[str, float]:
    return {phase: values.get(phase, 0.0) for phase in PHASES}


def _spread(seen: Between, name: str) -> Spread | None:
    half, most = seen.quantile(name, 0.5), seen.quantile(name, 0.99)
    return None if half is None or most is None else Spread(seen.increase(f"{name}_count"), half, most)


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def _full(rejected: Mapping[str, float]) -> float:
    return sum(value for reason, value in rejected.items() if reason.startswith("queue"))


def _throttled(periods: Mapping[str, float]) -> float:
    whole = sum(periods.values())
    return periods.get("throttled", 0.0) / whole if whole else 0.0


def _shares_of_time(waited: Mapping[str, float], seconds: float) -> dict[str, float]:
    return {resource: min(1.0, spent / seconds) for resource, spent in waited.items()}


def _shares(scrapes: Sequence[Scrape], phase: str) -> dict[str, float]:
    """The latest that are told: a kind of step that is over for a while has none any more."""
    looks = [
        {bound: scrape.value("octavo_roofline_ratio", phase=phase, bound=bound) for bound in BOUNDS}
        for scrape in reversed(scrapes)
    ]
    return next((look for look in looks if any(look.values())), looks[0])


def _settings(scrape: Scrape) -> Settings:
    engine, cache = scrape.labels("octavo_engine_info"), scrape.labels("octavo_cache_info")
    return Settings(
        max_num_seqs=_whole(engine.get("max_num_seqs")),
        max_num_batched_tokens=_whole(engine.get("max_num_batched_tokens")),
        chunked=_switch(engine.get("enable_chunked_prefill")),
        prefix_caching=_switch(cache.get("enable_prefix_caching")),
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def _switch(text: str | None) -> bool | None:
    return {"true": True, "false": False}.get(text or "")
