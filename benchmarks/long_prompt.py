"""A prompt of 4,000 tokens arrives while eight answers are generated: how long do their readers wait for a token?

    python benchmarks/long_prompt.py [--prompt-tokens N] [--layers N] [--rounds N] [--processor-time] [--json FILE]
        [--svg FILE]

The same engine in three settings, in turns: paced (as it is by default), in chunks as large as a step may be, and not
in chunks at all. The engine is stepped here, without HTTP, so that a gap between two tokens is a step and nothing else.
Gaps are counted from the last tokens before the prompt arrives to its first token. The exit code is 1 when the 99th
percentile of the paced gaps is not under twice their median. On a machine that others use, --processor-time counts what
this process computed between two tokens, whoever else had a turn meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count, pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from checkpoint import smollm2
from gap_picture import Gap, picture
from safetensors import safe_open
from safetensors.torch import save_file

from octavo_engine.assembly import assemble
from octavo_engine.batch import Batch
from octavo_engine.config import EngineConfig
from octavo_engine.engine import Engine
from octavo_engine.request import Request, SamplingParams
from octavo_engine.tokenizer import load_tokenizer

STREAMS, SHORT_TOKENS, ANSWER_TOKENS = 8, 64, 350
QUIET_TOKENS = 60  # of each answer, before the long prompt arrives
WINDOW = 8192
VARIANTS: dict[str, dict[str, Any]] = {
    "paced": {},
    "chunks": {"max_decode_slowdown": 1000.0, "max_step_seconds": 3600.0},
    "whole": {"enable_chunked_prefill": False, "max_num_batched_tokens": WINDOW},
}
Clock = Callable[[], float]
_numbers = count()


class Silent:
    """Reports nothing: what is measured here is measured here."""

    def step(self, batch: Batch, seconds: float) -> None:
        """See octavo_engine.engine.Recorder."""

    def token(self, request: Request, at: float) -> None:
        """The same."""

    def finished(self, request: Request, at: float) -> None:
        """The same."""


@dataclass(frozen=True)
class Figures:
    """One run. Seconds; gaps are between two tokens of one of the eight answers."""

    median: float  # of all gaps
    p99: float
    largest: float
    quiet_median: float  # of those before the long prompt arrives
    quiet_p99: float  # what others on this machine do to a gap
    busy_median: float  # of those while it is computed
    time_to_first_token: float  # of the long prompt
    steps: int  # that it takes
    gaps: tuple[Gap, ...]  # of one of the answers

    @property
    def ratio(self) -> float:
        """What the goal is about: under 2."""
        return self.p99 / self.median


def build(checkpoint: Path, threads: int, clock: Clock, options: dict[str, Any]) -> Engine:
    """An engine with its model in bfloat16, which learns its pace by the clock that gaps are measured with."""
    common: dict[str, Any] = {
        "model": str(checkpoint),
        "dtype": "bfloat16",
        "threads": threads,
        "max_model_len": WINDOW,
    }
    config = EngineConfig(**common | {"kv_cache_memory_bytes": 1 << 29, "max_num_seqs": 16} | options)
    engine = assemble(config, load_tokenizer(config.model), Silent()).engine
    engine._clock = clock  # noqa: SLF001 (a running server has no use for another clock)
    return engine


def ask(engine: Engine, prompt_tokens: int, answer_tokens: int) -> Request:
    """Queue a random prompt, of which nothing is cached."""
    number = next(_numbers)
    draw = random.Random(number)  # nothing secret
    tokens = [draw.randrange(1_000, 40_000) for _ in range(prompt_tokens)]
    params = SamplingParams(temperature=0, max_tokens=answer_tokens, ignore_eos=True)
    request = Request(id=f"r{number}", tokens=tokens, params=params, arrival=0.0)
    engine.add(request)
    return request


def run(engine: Engine, prompt_tokens: int, clock: Clock, answer_tokens: int = ANSWER_TOKENS) -> Figures:
    """Eight answers, and the long prompt in their midst."""
    short = {ask(engine, SHORT_TOKENS, answer_tokens): list[float]() for _ in range(STREAMS)}
    while min(map(len, short.values())) < QUIET_TOKENS:
        read(engine, short, clock)
    arrived = clock()
    long = ask(engine, prompt_tokens, 1)
    steps, first_token = 0, 0.0
    while engine.has_work:
        steps += not first_token
        if long in read(engine, short, clock):
            first_token = clock()
    gaps = [(later, later - earlier) for times in short.values() for earlier, later in pairwise(times)]
    quiet = [gap for at, gap in gaps if at <= arrived]
    busy = [gap for at, gap in gaps if arrived < at <= first_token]
    return Figures(
        median=median(quiet + busy),
        p99=p99(quiet + busy),
        largest=max(busy),
        quiet_median=median(quiet),
        quiet_p99=p99(quiet),
        busy_median=median(busy),
        time_to_first_token=first_token - arrived,
        steps=steps,
        gaps=tuple((later - arrived, later - earlier) for earlier, later in pairwise(next(iter(short.values())))),
    )


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return quantiles(values, n=100, method="inclusive")[98]


def read(engine: Engine, short: dict[Request, list[float]], clock: Clock) -> set[Request]:
    """One step: note when tokens came; returns who got one."""
    outputs = engine.step()
    now = clock()
    for output in outputs:
        if output.request in short:
            short[output.request].append(now)
    return {output.request for output in outputs}


def reduced(checkpoint: Path, layers: int, place: Path) -> Path:
    """The same model with its first `layers` layers only: nonsense, but fast."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    (place / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}), encoding="utf-8")
    for file in checkpoint.glob("tokenizer*"):
        (place / file.name).symlink_to(file)
    with safe_open(checkpoint / "model.safetensors", "pt") as tensors:
        names = [name for name in tensors.keys() if layer_of(name) < layers]  # noqa: SIM118 (not a dictionary)
        save_file({name: tensors.get_tensor(name) for name in names}, place / "model.safetensors")
    return place


def layer_of(tensor: str) -> int:
    """The number of the layer that a tensor belongs to; -1 for those of none."""
    words = tensor.split(".")
    return int(words[2]) if words[1] == "layers" else -1


def measure(checkpoint: Path, options: argparse.Namespace) -> dict[str, list[Figures]]:
    """All variants in turns."""
    clock = time.process_time if options.processor_time else time.perf_counter
    engines = {
        name: build(checkpoint, options.threads, clock, changes)
        for name, changes in VARIANTS.items()
        if name in options.only
    }
    for engine in engines.values():
        run(engine, 256, clock, answer_tokens=2 * QUIET_TOKENS)
    results: dict[str, list[Figures]] = {name: [] for name in engines}
    for number in range(1, options.rounds + 1):
        for name, engine in engines.items():
            results[name].append(figures := run(engine, options.prompt_tokens, clock))
            print(f"round {number}, {name}: P99 {figures.ratio:.2f} times the median", file=sys.stderr)
    return results


def middle(runs: Sequence[Figures]) -> Figures:
    """The run in the middle, by what is judged."""
    return sorted(runs, key=lambda figures: figures.ratio)[len(runs) // 2]


COLUMNS = (
    *("before: median", "before: P99 / median", "while: median", "P99", "P99 / median", "P99 / median before"),
    *("largest", "its first token", "its steps"),
)
HEAD = f"| | {' | '.join(COLUMNS)} |\n|---{'|---:' * len(COLUMNS)}|"


def row(name: str, runs: Sequence[Figures]) -> str:
    """The middle round of a variant, in milliseconds."""
    it = middle(runs)
    quiet = f"{it.quiet_median * 1e3:.1f} | {it.quiet_p99 / it.quiet_median:.2f} | {it.busy_median * 1e3:.1f}"
    gaps = f"{it.p99 * 1e3:.1f} | {it.ratio:.2f} | {it.p99 / it.quiet_median:.2f} | {it.largest * 1e3:.0f}"
    return f"| {name} | {quiet} | {gaps} | {it.time_to_first_token * 1e3:.0f} | {it.steps} |"


def main() -> int:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--layers", type=int, help="keep so many of the model's layers: quick, for a busy machine")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="these settings")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--processor-time", action="store_true", help="processor seconds of all threads, not wall time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = reduced(smollm2(), options.layers, Path(scratch)) if options.layers else smollm2()
        results = measure(checkpoint, options)
    print("\n".join([HEAD, *(row(name, runs) for name, runs in results.items())]))
    if options.svg:
        title = f"Gaps between the tokens of an answer; at 0 s a prompt of {options.prompt_tokens:,} tokens arrives"
        options.svg.write_text(picture({name: middle(runs).gaps for name, runs in results.items()}, title))
    if options.json:
        runs = {name: [asdict(figures) for figures in several] for name, several in results.items()}
        facts = {"machine": platform.processor() or platform.machine(), "layers": options.layers, "runs": runs}
        options.json.write_text(
            json.dumps(facts | {"prompt_tokens": options.prompt_tokens}, indent=1), encoding="utf-8"
        )
    return int("paced" in results and middle(results["paced"]).ratio >= 2)


if __name__ == "__main__":
    sys.exit(main())
