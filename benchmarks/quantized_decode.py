"""One stream of SmolLM2-135M from its GGUF file: weights in few bits, the same expanded to bfloat16, and llama.cpp.

    PYTHONPATH=engine:benchmarks:benchmarks/cpu .venv/bin/python benchmarks/quantized_decode.py [--rounds 5]

The engine, stepped without HTTP, and llama.cpp, called without its server (llama_cpp_contender.py), take turns, with
as many threads each. Figures are medians of the rounds: tokens a second after the first, milliseconds to the first
token of a prompt of 128, and for ours the bytes of weights, which a step reads once, with the share of what this
machine reads of its memory in that time. The exit code is 1 when llama.cpp decodes faster.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from checkpoint import packaged_gguf, smollm2
from stepped import stepped

from cpu_figures.peers import LLAMA_CPP, prepare
from octavo_engine.assembly import Assembly
from octavo_engine.kernels.cpu import rates
from octavo_engine.request import Request, SamplingParams

PROMPT, ANSWER = 128, 256  # tokens


@dataclass(frozen=True)
class Once:
    """One answer."""

    first: float  # seconds to the first token
    rate: float  # tokens a second after it


Contender = Callable[[int], Once]  # with a seed for the prompt


def answer(assembly: Assembly, seed: int) -> Once:
    """Step the engine until the request has ended."""
    engine, params = assembly.engine, SamplingParams(temperature=0.0, max_tokens=ANSWER, ignore_eos=True)
    began = time.perf_counter()
    engine.add(Request(id=str(seed), tokens=prompt(seed), params=params, arrival=time.monotonic()))
    times = []
    while len(times) < ANSWER:
        tokens = len(engine.step())
        times += [time.perf_counter()] * tokens
    return Once(times[0] - began, (ANSWER - 1) / (times[-1] - times[0]))


def prompt(seed: int) -> list[int]:
    """Random token ids."""
    draw = random.Random(seed)  # nothing secret
    return [draw.randrange(1_000, 40_000) for _ in range(PROMPT)]


class LlamaCpp:
    """llama.cpp in a process of its own, which answers when it is asked and otherwise waits."""

    def __init__(self, model: Path, threads: int) -> None:
        python = prepare(LLAMA_CPP, print) / "python"
        script = Path(__file__).with_name("llama_cpp_contender.py")
        command = [str(python), str(script), str(model), str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, seed: int) -> Once:
        """Raises RuntimeError when the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({"prompt": prompt(seed), "answer": ANSWER}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"llama.cpp ended with {self._process.wait()}")
        return Once(**json.loads(line))

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def measure(contenders: dict[str, Contender], rounds: int) -> dict[str, Once]:
    """Medians of each, after one answer that does not count."""
    found: dict[str, list[Once]] = {name: [] for name in contenders}
    for seed in range(rounds + 1):
        for name, run in contenders.items():
            once = run(seed)
            if seed:
                found[name].append(once)
    return {
        name: Once(median(once.first for once in runs), median(once.rate for once in runs))
        for name, runs in found.items()
    }


def table(found: dict[str, Once], weights: dict[str, int], read_rate: float) -> str:
    """One row a contender, in Markdown."""
    lines = ["| | tokens/s | ms to first token | MB of weights | share of memory |", "|---|---:|---:|---:|---:|"]
    for name, once in found.items():
        figures = f"| {name} | {once.rate:.0f} | {once.first * 1e3:.0f} |"
        size = weights.get(name)
        lines.append(f"{figures} {size / 1e6:.0f} | {size * once.rate / read_rate:.2f} |" if size else f"{figures} | |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-peer", action="store_true", help="leave llama.cpp out")
    options = parser.parse_args()
    engines = {
        "Octavo, few bits": stepped(packaged_gguf(), options.threads),
        "Octavo, bfloat16": stepped(smollm2(), options.threads),
    }
    contenders: dict[str, Contender] = {
        name: lambda seed, assembly=assembly: answer(assembly, seed)  # type: ignore[misc]
        for name, assembly in engines.items()
    }
    peer = None if options.without_peer else LlamaCpp(packaged_gguf(), options.threads)
    if peer is not None:
        contenders["llama.cpp"] = peer
    try:
        found = measure(contenders, options.rounds)
    finally:
        if peer is not None:
            peer.close()
    torch.set_num_threads(options.threads)
    read_rate = rates.read_rate(options.threads)
    weights = {name: assembly.weight_bytes for name, assembly in engines.items()}
    print(f"{options.threads} threads, memory read at {read_rate / 1e9:.0f} GB/s\n")
    print(table(found, weights, read_rate))
    if peer is not None:
        ratio = found["Octavo, few bits"].rate / found["llama.cpp"].rate
        print(f"\n{ratio:.2f} times llama.cpp")
        sys.exit(ratio < 1)


if __name__ == "__main__":
    main()
