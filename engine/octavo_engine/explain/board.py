"""The page of `octavo top`: rows of figures, each with its past as a line of blocks, and what limits. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

from octavo_engine.diagnosis.diagnose import diagnose
from octavo_engine.diagnosis.facts import between
from octavo_engine.diagnosis.scrape import Between
from octavo_engine.explain.report import TEXT_WIDTH, Style
from octavo_engine.explain.report import seconds as spell

FRAMES_KEPT = 60
BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(slots=True)
class Board:
    """What was seen so far, as one page of text."""

    style: Style
    past: dict[str, deque[float]] = field(default_factory=dict)

    def page(self, seen: Between, load: Mapping[str, Any], replicas: Mapping[str, Between] | None = None) -> str:
        """The page after one more look; `replicas`: what was seen of each, where `seen` is of several together."""
        rows = [*_latencies(seen), _throughput(seen), _queue(load), _cache(seen, load)]
        lines = [self.style.strong(f"{load['model_name']}: {load['state']}"), ""]
        for name, value, text in rows:
            kept = self.past.setdefault(name, deque(maxlen=FRAMES_KEPT))
            kept.append(value)
            lines += [f"{self.style.strong(f'{name:<22}')}{text}", f"  {sparkline(kept)}"]
        looks = {"": seen} if replicas is None else replicas
        for pod, each in looks.items():
            lines += self._limit(f"{pod} limited by".lstrip(), each)
        return "\n".join(lines) + "\n"

    def _limit(self, name: str, seen: Between) -> list[str]:
        first = diagnose(between([seen.before, seen.after]))[0]
        head = f"{self.style.strong(f'{name:<21}')} {first.limiter}: {first.evidence}"
        change = wrap(f"{first.advice}; expected: {first.effect}", TEXT_WIDTH)
        return [head, *(f"  {line}" for line in change)]


def sparkline(values: Sequence[float]) -> str:
    """Each value as a block, as high as its share of the largest."""
    most = max(values, default=0.0)
    return "".join(BLOCKS[min(7, int(8 * value / most))] if most else BLOCKS[0] for value in values)


def _latencies(seen: Between) -> Iterator[tuple[str, float, str]]:
    for name, family in (
        ("time to first token", "octavo_time_to_first_token_seconds"),
        ("inter-token latency", "octavo_inter_token_latency_seconds"),
    ):
        half, most = seen.quantile(family, 0.5), seen.quantile(family, 0.99)
        told = "none" if half is None or most is None else f"p50 {spell(half)}, p99 {spell(most)}"
        yield name, most or 0.0, f"{told}, of {seen.increase(f'{family}_count'):,.0f}"


def _throughput(seen: Between) -> tuple[str, float, str]:
    generated = seen.rate("octavo_generation_tokens_total")
    sources = {
        source: seen.rate("octavo_prompt_tokens_total", source=source)
        for source in seen.after.by("octavo_prompt_tokens_total", "source")
    }
    prompts = ", ".join(f"{rate:,.0f} {source}" for source, rate in sources.items() if rate) or "none"
    return "tokens a second", generated, f"{generated:,.0f} generated; prompts: {prompts}"


def _queue(load: Mapping[str, Any]) -> tuple[str, float, str]:
    waiting = {reason: count for reason, count in load["waiting"].items() if count}
    number = sum(waiting.values())
    reasons = f" ({', '.join(f'{count:,} {reason}' for reason, count in waiting.items())})" if waiting else ""
    oldest = f"; the oldest for {spell(load['oldest_wait_seconds'])}" if waiting else ""
    estimate = f"; about {spell(load['estimated_queue_seconds'])} ahead" if load["estimated_queue_seconds"] else ""
    told = f"{number:,} waiting{reasons}, {load['running']:,} of {load['max_num_seqs']:,} running{oldest}{estimate}"
    return "queue", float(number), told


def _cache(seen: Between, load: Mapping[str, Any]) -> tuple[str, float, str]:
    hits, misses = (seen.increase("octavo_prefix_cache_tokens_total", result=result) for result in ("hit", "miss"))
    found = f"{100 * hits / (hits + misses):.0f} % of the prompts found" if hits + misses else "no prompt looked up"
    lost = sum(seen.increase("octavo_preemptions_total", reason=why) for why in _reasons(seen))
    used = load["kv_cache_usage_ratio"]
    return "KV cache", used, f"{100 * used:.0f} % used, {found}, {lost:,.0f} preempted"


def _reasons(seen: Between) -> list[str]:
    return list(seen.after.by("octavo_preemptions_total", "reason"))
