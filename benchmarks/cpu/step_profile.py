"""Where a decode step's time goes, part by part, with one stream and with many.

    PYTHONPATH=engine:benchmarks:benchmarks/cpu python benchmarks/cpu/step_profile.py [--streams 1 32] [--context 192]

The real engine with SmolLM2, without HTTP. Times are what a call and all below it take, by a profiler that costs some
microseconds a call: shares tell more than the milliseconds. `perf record -e cpu-clock` on this script tells what the
time within the native part is spent on.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import time
from collections.abc import Mapping
from pathlib import Path

from checkpoint import smollm2

import published
from octavo_engine.assembly import assemble
from octavo_engine.config import EngineConfig
from octavo_engine.engine import Engine
from octavo_engine.request import Request, SamplingParams
from octavo_engine.tokenizer import load_tokenizer
from why_paging.serving import Unrecorded

# Part -> the end of its file's name, and its functions.
PARTS = {
    "step": ("octavo_engine/engine.py", {"step"}),
    "schedule": ("scheduling/scheduler.py", {"schedule"}),
    "inputs and model and sampling": ("runtime/runner.py", {"launch"}),
    "inputs": ("runtime/inputs.py", {"plan", "inputs"}),
    "layers, norms and embedding": ("model/compute/decoder.py", {"forward"}),
    "head": ("model/compute/decoder.py", {"logits"}),
    "sampling": ("runtime/sampler.py", {"sample"}),
    "tokens to text, accounts": ("octavo_engine/engine.py", {"_take_off", "_land"}),
}


def engine_with(model: Path, streams: int, context: int, steps: int, threads: int) -> Engine:
    """An engine in which `streams` requests of `context` tokens have `steps` tokens and more to go."""
    config = EngineConfig(
        model=str(model),
        dtype="bfloat16",
        device="cpu",
        threads=threads,
        kv_cache_memory_bytes=2 << 30,
        num_speculative_tokens=0,  # a step is to give one token of each
        max_decode_slowdown=1000.0,  # all prompts are computed before the first answer ends
        max_step_seconds=3600.0,
    )
    engine = assemble(config, load_tokenizer(str(model)), Unrecorded()).engine
    for number in range(streams):
        params = SamplingParams(temperature=0.0, max_tokens=2 * steps + 64, ignore_eos=True)
        prompt = [(7 * number + 13 * at) % 40_000 + 1_000 for at in range(context)]
        engine.add(Request(id=str(number), tokens=prompt, params=params, arrival=time.monotonic()))
    while len(engine.step()) < streams:
        pass
    return engine


def middle_step(engine: Engine, steps: int) -> float:
    """Seconds of the median step."""
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - began)
    return sorted(times)[steps // 2]


def measure(engine: Engine, steps: int) -> tuple[float, dict[str, float]]:
    """The median step without a profiler, and each part's share of a step under one."""
    middle = middle_step(engine, steps)
    profile = cProfile.Profile()
    profile.enable()
    for _ in range(steps):
        engine.step()
    profile.disable()
    spent = dict.fromkeys(PARTS, 0.0)
    for (file, _, function), (_, _, _, cumulative, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        for name, (ending, wanted) in PARTS.items():
            if file.endswith(ending) and function in wanted:
                spent[name] += cumulative
    unseen = [name for name, seconds in spent.items() if not seconds]
    if unseen:
        raise SystemExit(f"never called, so perhaps renamed: {', '.join(unseen)}")
    return middle, {name: seconds / spent["step"] for name, seconds in spent.items()}


def table(found: Mapping[int, tuple[float, dict[str, float]]]) -> str:
    """One column a number of streams, in Markdown."""
    lines = ["| | " + " | ".join(f"{streams} stream{'s' * (streams > 1)}" for streams in found) + " |"]
    lines.append("|---|" + "---:|" * len(found))
    lines.append("| a step, ms | " + " | ".join(f"{seconds * 1e3:.2f}" for seconds, _ in found.values()) + " |")
    for name in PARTS:
        shares = " | ".join(f"{by_part[name]:.1%}" for _, by_part in found.values())
        lines += [f"| {name} | {shares} |"]
    return "\n".join(lines)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--context", type=int, default=192, help="tokens of each stream before it is measured")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--document", type=Path, metavar="FILE", help="also put the table between this file's marks")
    options = parser.parse_args()
    model = smollm2()
    found = {
        streams: measure(engine_with(model, streams, options.context, options.steps, options.threads), options.steps)
        for streams in options.streams
    }
    text = table(found)
    print(text)
    if options.document:
        published.put(options.document, "step-profile", text)


if __name__ == "__main__":
    main()
