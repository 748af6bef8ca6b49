"""Should the engine step in a thread beside the API, or in a process of its own? Both, beside each other, in turns.

    python benchmarks/one_or_two_processes.py [--quick] [--json FILE]

The same engine and the same API serve the same streams: in one process (with the usual switch interval of Python's
lock, and with a short one), and in two with msgpack over a local socket between them. `null` computes nothing, so that
only what surrounds the model is measured; `paced` sleeps for 20 ms in each step, so that every token is sent by itself;
`smollm2` is real. Ratios of one run count; the best of the rounds is shown.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import quantiles

import report
from measurement import Load
from octavo_contender import free_port
from served_engine import api_process, engine_process, one_process
from stream_client import Reader, run_load

SPAWN = multiprocessing.get_context("spawn")
START_SECONDS = 300
USUAL, SHORT = 0.005, 0.0005  # seconds for which a thread may keep Python's lock while another wants it
STREAMS = (1, 8, 64, 256)
PROMPT_TOKENS = 32
OUTPUT_TOKENS = {"null": 400, "paced": 100, "smollm2": 32}


@dataclass(frozen=True)
class Row:
    """One contender under one load: tokens a second, milliseconds, processor microseconds of the server a token."""

    model: str
    streams: int
    contender: str
    tokens_per_second: float
    gap_p50: float
    gap_p99: float
    cpu_microseconds: float


@dataclass(frozen=True)
class Server:
    """A contender that is up."""

    name: str
    port: int
    pids: tuple[int, ...]

    def cpu(self) -> float:
        """Processor seconds of its processes so far."""
        return sum(map(running_seconds, self.pids))


@contextmanager
def running(*targets: tuple[Callable[..., None], tuple[object, ...]]) -> Iterator[list[BaseProcess]]:
    """Processes that end with the block."""
    processes: list[BaseProcess] = []
    try:
        for function, args in targets:
            processes.append(SPAWN.Process(target=function, args=args, daemon=True))
            processes[-1].start()
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


@contextmanager
def one(name: str, model: str, threads: int, switch_seconds: float) -> Iterator[Server]:
    """Engine and API in one process."""
    port = free_port()
    with running((one_process, (model, threads, port, switch_seconds))) as processes:
        wait_for(lambda: accepts(port), processes)
        yield Server(name, port, tuple(process.pid or 0 for process in processes))


@contextmanager
def two(name: str, model: str, threads: int) -> Iterator[Server]:
    """Engine and API in a process each."""
    port = free_port()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        path = os.path.join(scratch, "engine")
        processes = stack.enter_context(running((engine_process, (model, threads, path))))
        wait_for(lambda: os.path.exists(path), processes)
        processes += stack.enter_context(running((api_process, (path, port))))
        wait_for(lambda: accepts(port), processes)
        yield Server(name, port, tuple(process.pid or 0 for process in processes))


def running_seconds(pid: int) -> float:
    """Processor seconds of a process's live threads, to the nanosecond: who sleeps and wakes by the timer's tick is
    counted wrongly by ticks."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text(encoding="ascii").split()[0]) for file in files) / 1e9


def accepts(port: int) -> bool:
    """Whether somebody listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition: Callable[[], bool], processes: list[BaseProcess]) -> None:
    """Until it holds; raises when a process ends before."""
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        if time.monotonic() > deadline or any(not process.is_alive() for process in processes):
            raise RuntimeError("a server did not start")
        time.sleep(0.05)


def measure(server: Server, model: str, load: Load, seed: int) -> Row:
    """One run."""
    before = server.cpu()
    readers = run_load(server.port, load, seed)
    return row(server, model, load, readers, server.cpu() - before)


def row(server: Server, model: str, load: Load, readers: list[Reader], cpu: float) -> Row:
    """The figures of one run."""
    tokens = load.streams * load.output_tokens
    seconds = max(each.arrivals[-1][0] for each in readers) - min(each.sent for each in readers)
    cuts = quantiles([gap for each in readers for gap in each.gaps()], n=100, method="inclusive")
    return Row(model, load.streams, server.name, tokens / seconds, 1e3 * cuts[49], 1e3 * cuts[98], 1e6 * cpu / tokens)


def best(rows: list[Row]) -> Row:
    """The run with the most tokens a second."""
    return max(rows, key=lambda each: each.tokens_per_second)


def compare(model: str, threads: int, rounds: int, loads: list[int]) -> list[Row]:
    """All loads of one model, contenders in turns."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(one("thread", model, threads, USUAL)),
            stack.enter_context(one("thread, 0.5 ms", model, threads, SHORT)),
            stack.enter_context(two("two processes", model, threads)),
        ]
        rows: list[Row] = []
        for streams in loads:
            load = Load(streams, PROMPT_TOKENS, OUTPUT_TOKENS[model])
            runs: dict[str, list[Row]] = {server.name: [] for server in servers}
            for number in range(rounds + 1):
                for server in servers:
                    runs[server.name].append(measure(server, model, load, seed=number))
            rows += [best(each[1:]) for each in runs.values()]  # the first round warms up
            print(table(rows[-len(servers) :]), file=sys.stderr, flush=True)
        return rows


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = [
        "| model | streams | contender | tok/s | ms between tokens, P50 | P99 | CPU us per token |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for each in rows:
        figures = f"{each.tokens_per_second:,.0f} | {each.gap_p50:.2f} | {each.gap_p99:.2f}"
        lines.append(f"| {each.model} | {each.streams} | {each.contender} | {figures} | {each.cpu_microseconds:.0f} |")
    return "\n".join(lines)


def main() -> int:
    """Compare, print the table, write JSON if asked."""
    parser = argparse.ArgumentParser(description="One process with a thread, or two processes?")
    parser.add_argument("--quick", action="store_true", help="one round of the null model: does it run?")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load is run (default: 3)")
    parser.add_argument("--streams", nargs="+", type=int, default=list(STREAMS))
    parser.add_argument("--models", nargs="+", default=list(OUTPUT_TOKENS), choices=list(OUTPUT_TOKENS))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of the real model")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    options = parser.parse_args()
    models, rounds = (["null"], 1) if options.quick else (options.models, options.rounds)
    rows = [each for model in models for each in compare(model, options.threads, rounds, options.streams)]
    print(table(rows))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {"machine": report.machine(options.threads), "rows": [asdict(each) for each in rows]}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
