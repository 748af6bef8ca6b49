"""What a scrape of `/metrics` costs: milliseconds of the thread that answers, and kilobytes; also under vLLM's names.

    python benchmarks/scrape_cost.py [--json FILE]

Of an engine that has told all that it can, whose histograms hold something. The least of several rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from octavo_engine.batch import SchedulerStats
from octavo_engine.metrics import Metrics
from octavo_engine.request import Request, SamplingParams
from octavo_engine.runtime import host
from octavo_engine.server.lifecycle import State
from octavo_engine.vllm_names import VllmNames

ROUNDS, TIMES = 15, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    figures = {}
    for name, vllm in (("a scrape", False), ("    with --metrics-compat vllm", True)):
        registry = exporting(vllm=vllm)
        milliseconds, kilobytes = 1e3 * least_seconds(registry), len(generate_latest(registry)) / 1e3
        figures[name.strip()] = {"ms": round(milliseconds, 3), "kB": round(kilobytes, 1)}
        print(f"{name:<40} {milliseconds:>6.2f} ms {kilobytes:>6.1f} kB")
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n")


def exporting(*, vllm: bool) -> CollectorRegistry:
    """Every series of an engine, as `octavo serve` registers them."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, model_name="smollm2", stats=SchedulerStats)
    metrics.server_state(lambda: dict.fromkeys(State, 0.0))
    metrics.cpu_periods(host.cpu_periods)
    metrics.engine_info(version="0", dtype="bfloat16", device="cpu")
    metrics.cache_info(block_size="16", num_blocks="728")
    for phase in ("imports", "tokenizer", "kernels", "weights", "kv_cache", "machine", "warm_up"):
        metrics.startup(phase, 0.5)
    request = Request(id="chatcmpl-0-0", tokens=[1] * 100, params=SamplingParams(), arrival=0.0)
    for number in range(1000):
        metrics.token(request, 0.2 + 0.0123 * number)
    if vllm:
        registry.register(VllmNames(metrics.series))
    return registry


def least_seconds(registry: CollectorRegistry) -> float:
    """Processor seconds of one scrape."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(TIMES):
            generate_latest(registry)
        rounds.append((time.thread_time() - began) / TIMES)
    return min(rounds)


if __name__ == "__main__":
    main()
