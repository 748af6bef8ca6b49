"""`octavo top`: the four numbers that matter, live in a terminal, with the last minute of each as a line of blocks."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, TextIO

from octavo_engine.config import FlagParser
from octavo_engine.errors import InvalidConfiguration
from octavo_engine.explain.command import NO_ANSWER, WRONG, style_of
from octavo_engine.explain.fetching import DEFAULT_URL, ManagementPort, NoAnswer, NotKnown
from octavo_engine.explain.report import Style
from octavo_engine.explain.report import seconds as spell
from octavo_engine.explain.scrape import Between, NotAnEngine, Scrape

FRAMES_KEPT = 60
BLOCKS = "▁▂▃▄▅▆▇█"
CLEAR = "\x1b[H\x1b[2J"


@dataclass(frozen=True, slots=True)
class TopSettings:
    """Whom to ask and how often, in seconds; `once`: print what one interval saw, and end."""

    url: str
    interval: float
    once: bool

    @classmethod
    def parse(cls, args: Sequence[str]) -> Self:
        """Read the arguments; raises InvalidConfiguration."""
        parser = FlagParser(
            prog="octavo top",
            allow_abbrev=False,
            description="Show time to first token, inter-token latency, throughput and queue of a running server.",
        )
        parser.add_argument("--url", default=DEFAULT_URL, help=f"the management port (default: {DEFAULT_URL})")
        parser.add_argument(
            "--interval", type=float, default=2.0, metavar="SECONDS", help="between two looks (default: 2)"
        )
        parser.add_argument("--once", action="store_true", help="print what one interval saw, and end")
        parsed = parser.parse_args(args)
        if not 0.1 <= parsed.interval <= 3600:
            parser.error(f"--interval is {parsed.interval}; it must be between 0.1 and 3600")
        return cls(parsed.url, parsed.interval, parsed.once)


@dataclass(slots=True)
class Board:
    """What was seen so far, as one page of text."""

    style: Style
    past: dict[str, deque[float]] = field(default_factory=dict)

    def page(self, seen: Between, load: Mapping[str, Any]) -> str:
        """The page after one more look."""
        rows = [*_latencies(seen), _throughput(seen), _queue(load), _cache(seen, load)]
        lines = [self.style.strong(f"{load['model_name']}: {load['state']}"), ""]
        for name, value, text in rows:
            kept = self.past.setdefault(name, deque(maxlen=FRAMES_KEPT))
            kept.append(value)
            lines += [f"{self.style.strong(f'{name:<22}')}{text}", f"  {sparkline(kept)}"]
        return "\n".join(lines) + "\n"


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


def top(
    arguments: Sequence[str],
    out: TextIO,
    environment: Mapping[str, str],
    rest: Callable[[float], object] = time.sleep,
) -> int:
    """Look again and again until interrupted; returns the exit code, as `octavo explain` does."""
    try:
        settings = TopSettings.parse(arguments)
        _watch(settings, out, Board(style_of(out, environment)), rest)
    except KeyboardInterrupt:
        return 0
    except InvalidConfiguration as error:
        print(f"octavo top: {error}", file=sys.stderr)  # noqa: T201
        return WRONG
    except (NoAnswer, NotAnEngine, NotKnown) as error:
        print(f"octavo top: {error}", file=sys.stderr)  # noqa: T201
        return NO_ANSWER
    return 0


def _watch(settings: TopSettings, out: TextIO, board: Board, rest: Callable[[float], object]) -> None:
    port = ManagementPort(settings.url)
    before = Scrape.read(port.text("metrics"), time.monotonic())
    while True:
        rest(settings.interval)
        after = Scrape.read(port.text("metrics"), time.monotonic())
        page = board.page(Between(before, after), port.json("load"))
        out.write(CLEAR + page if out.isatty() and not settings.once else page)
        out.flush()
        if settings.once:
            return
        before = after
