"""What `octavo bench` is told, and what that means."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, Self

from octavo_engine.bench.arrivals import Arrivals, ClosedLoop, Ramp, Replay, Steady
from octavo_engine.bench.conversations import Shape
from octavo_engine.bench.driver import Bound
from octavo_engine.bench.lengths import Lengths
from octavo_engine.bench.summary import Objectives
from octavo_engine.bench.traces import Entry, read_trace
from octavo_engine.bench.wire import Target
from octavo_engine.config import FlagParser, add_flags, check_bounds, from_namespace, option, read_environment
from octavo_engine.errors import InvalidConfiguration

SECRET = ("api_key",)
DEFAULT_REQUESTS = 100
DEFAULT_CONCURRENCY = 8


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """`octavo bench`: whom to ask, how much, when, and how it is told."""

    url: str = option("http://127.0.0.1:8000", "the server's API, with or without /v1")
    model: str | None = option(None, "name of the model; default: the first that the server lists")
    endpoint: Literal["chat", "completions"] = option("chat", "which of the API's two ways to generate text")
    api_key: str | None = option(None, "bearer token; rather give it in OCTAVO_API_KEY, which no process list shows")
    concurrency: int | None = option(
        None,
        f"closed loop: so many conversations at once, each followed by the next (default: {DEFAULT_CONCURRENCY})",
        minimum=1,
        maximum=100_000,
    )
    rate: float | None = option(
        None, "open loop: random arrivals, so many conversations a second on average", minimum=1e-3, maximum=1e6
    )
    burstiness: float = option(
        1.0, "of --rate: 1 is a Poisson process, less comes in bursts, more evenly", minimum=0.01, maximum=1e4
    )
    ramp: str | None = option(None, "open loop: FIRST:LAST:SECONDS, a rate that rises (or falls) evenly, and stays")
    replay: bool = option(False, "open loop: at the times of the --trace")
    replay_speed: float = option(
        1.0, "how much faster than the trace; 2 takes half the time", minimum=1e-3, maximum=1e4
    )
    requests: int | None = option(
        None, f"end after so many requests (default: {DEFAULT_REQUESTS}, unless --seconds is given)", minimum=1
    )
    seconds: float | None = option(
        None, "send for so long; what is under way then is read to its end", minimum=0.1, maximum=604_800
    )
    warmup: int = option(4, "requests sent before, at the same time, and not counted", minimum=0, maximum=10_000)
    input_tokens: str = option(
        "256", "length of a prompt, or of each turn's: N, uniform:LOW-HIGH, lognormal:MEDIAN:SIGMA[:MAX]"
    )
    output_tokens: str = option("128", "length of an answer, the same forms")
    trace: str | None = option(None, "file of lengths (and times, and messages), CSV with a head or JSON lines")
    shared_prefix_tokens: int = option(
        0, "tokens that prompts begin with alike, before --input-tokens: a system prompt", minimum=0, maximum=1_000_000
    )
    shared_prefixes: int = option(1, "how many different such beginnings there are", minimum=1, maximum=100_000)
    turns: int = option(1, "turns of a conversation; each prompt holds all that was said", minimum=1, maximum=1_000)
    turn_pause: float = option(0.0, "seconds between an answer and the next turn", minimum=0, maximum=3_600)
    tokenizer: str | None = option(
        None, "checkpoint whose tokenizer counts prompts, where the server has no /tokenize; default: the server's"
    )
    ignore_eos: bool = option(
        True, "ask for answers of the full length; --no-ignore-eos for servers that refuse the field"
    )
    extra_body: str | None = option(None, "JSON object with more fields for each request")
    seed: int = option(0, "of lengths, words and arrivals: the same seed asks the same", minimum=0)
    timeout: float = option(600.0, "seconds that one request may take", minimum=0.1, maximum=86_400)
    slo_ttft: float | None = option(None, "objective of a good request: milliseconds to the first token", minimum=0)
    slo_itl: float | None = option(
        None, "the same: milliseconds for each token after the first, on the request's average", minimum=0
    )
    slo_e2e: float | None = option(None, "the same: milliseconds to the last token", minimum=0)
    metrics_url: str | None = option(
        None, "management port (or a URL of metrics), such as http://127.0.0.1:8001: shows queue and KV use alongside"
    )
    metrics_interval: float = option(1.0, "seconds between two looks at it", minimum=0.1, maximum=3_600)
    sweep: str | None = option(
        None,
        "FLAG=VALUE,VALUE,...: start octavo serve with each value in turn, and measure each; after -- its arguments",
    )
    start_seconds: float = option(600.0, "how long a server of --sweep may take to start", minimum=1, maximum=86_400)
    json: str | None = option(None, "file for all that was measured; what --compare reads")
    markdown: str | None = option(None, "file for the report that is printed")
    html: str | None = option(None, "file for the report with pictures, one page that needs nothing else")

    def __post_init__(self) -> None:
        check_bounds(self)
        chosen = [name for name in ("concurrency", "rate", "ramp") if getattr(self, name) is not None]
        chosen += ["replay"] if self.replay else []
        if len(chosen) > 1:
            raise InvalidConfiguration(f"--{chosen[0]} and --{chosen[1]} exclude each other: load comes in one way")
        if self.replay and not self.trace:
            raise InvalidConfiguration("--replay needs a --trace with times")
        if self.trace and (self.turns > 1 or self.shared_prefix_tokens):
            raise InvalidConfiguration(
                "--trace says what is asked: it goes with neither --turns nor --shared-prefix-tokens"
            )


@dataclass(frozen=True)
class BenchSettings:
    """The same with its texts read. Everything wrong is found here, before anything is sent."""

    config: BenchConfig
    serve: tuple[str, ...] = ()  # the arguments of `octavo serve`, for a sweep

    @classmethod
    def parse(cls, args: Sequence[str], environment: Mapping[str, str]) -> Self:
        """Read the arguments; raises InvalidConfiguration naming the flag."""
        at = list(args).index("--") if "--" in args else len(args)
        parsed = bench_parser().parse_args(args[:at])
        if getattr(parsed, "api_key", None) is None:
            parsed.api_key = next(iter(read_environment(environment)), None)
        made = cls(from_namespace(BenchConfig, parsed), tuple(args[at + 1 :]))
        made.check()
        return made

    def check(self) -> None:
        """Raise InvalidConfiguration where a text means nothing."""
        if bool(self.serve) != (self.config.sweep is not None):
            raise InvalidConfiguration("--sweep FLAG=VALUE,... goes with the arguments of octavo serve, after --")
        _ = self.target, self.entries, self.arrivals, self.shape, self.common, self.metrics

    @cached_property
    def target(self) -> Target:
        """The server."""
        return Target.of(self.config.url)

    @cached_property
    def metrics(self) -> Target | None:
        """Where its figures are; the path is the prefix, with /metrics."""
        if self.config.metrics_url is None:
            return None
        return Target.of(self.config.metrics_url.rstrip("/").removesuffix("/metrics"), "--metrics-url")

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Of the trace."""
        return read_trace(self.config.trace) if self.config.trace else ()

    @cached_property
    def arrivals(self) -> Arrivals:
        """When conversations begin."""
        config = self.config
        if config.rate is not None:
            return Steady(config.rate, config.burstiness)
        if config.ramp is not None:
            return Ramp.parse(config.ramp)
        if not config.replay:
            return ClosedLoop(config.concurrency or DEFAULT_CONCURRENCY)
        times = [entry.at for entry in self.entries if entry.at is not None]
        if not times:
            raise InvalidConfiguration("--replay needs a time in each line of the --trace, such as TIMESTAMP")
        return Replay(times, config.replay_speed)

    @cached_property
    def shape(self) -> Shape:
        """How prompts are made, without a trace."""
        config = self.config
        return Shape(
            prompt=Lengths.parse(config.input_tokens, "--input-tokens"),
            output=Lengths.parse(config.output_tokens, "--output-tokens"),
            shared_prefix=config.shared_prefix_tokens,
            prefixes=config.shared_prefixes,
            turns=config.turns,
        )

    @cached_property
    def common(self) -> dict[str, Any]:
        """Fields of each request, but the model."""
        body: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        if self.config.ignore_eos:
            body["ignore_eos"] = True
        if self.config.extra_body is None:
            return body
        try:
            extra = json.loads(self.config.extra_body)
        except ValueError as error:
            raise InvalidConfiguration(f"--extra-body is no JSON: {error}") from error
        if not isinstance(extra, dict):
            raise InvalidConfiguration("--extra-body must be a JSON object")
        return body | extra

    @property
    def bound(self) -> Bound:
        """What ends the measurement."""
        config = self.config
        whole = config.replay and config.requests is None  # a trace that is replayed has an end
        requests = None if config.seconds is not None or whole else DEFAULT_REQUESTS
        return Bound(config.requests or requests, config.seconds)

    @property
    def objectives(self) -> Objectives:
        """In seconds."""
        ttft, itl, e2e = (
            None if limit is None else limit / 1e3
            for limit in (self.config.slo_ttft, self.config.slo_itl, self.config.slo_e2e)
        )
        return Objectives(ttft=ttft, itl=itl, e2e=e2e)

    def told(self) -> dict[str, Any]:
        """What a report says of the load: each setting that differs from its default, and no secret."""
        values = {item.name: getattr(self.config, item.name) for item in fields(self.config)}
        own = {item.name: item.default for item in fields(self.config)}
        shown = {
            name: value
            for name, value in values.items()
            if value != own[name] and name not in (*SECRET, "json", "markdown", "html", "sweep", "url", "metrics_url")
        }
        return shown | {"arrivals": str(self.arrivals)}


def bench_parser() -> argparse.ArgumentParser:
    """The parser of `octavo bench`, without --compare."""
    parser = FlagParser(
        prog="octavo bench",
        allow_abbrev=False,
        usage="octavo bench [options]\n"
        "       octavo bench --compare A.json B.json\n"
        "       octavo bench [options] --sweep FLAG=VALUE,... -- SERVE_ARGUMENTS",
        description="Load a server of the OpenAI API, and say how it answered.",
    )
    add_flags(parser, BenchConfig)
    return parser
