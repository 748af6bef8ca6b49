"""`octavo bench` beside vLLM's load client and guidellm: three clients in turn, one server, and the wire between them.

    PYTHONPATH=engine:benchmarks:benchmarks/cpu python -m clients_agree [--quick] [--rounds N] [--json FILE]

As root, the packets are watched. The exit code is 1 when a median of a client differs from that of its own packets by
more than 5 %: ours on either server, the others' where the real model answers.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import report
from checkpoint import smollm2

from cpu_figures.servers import Server

from . import table
from .answers import Figures, figures, middle
from .clients import Client, prepare
from .loads import LOADS, REAL, Load, recipe
from .wire import Watcher

SETTLE_SECONDS = 0.5
Runs = dict[str, list[Figures]]


def main() -> int:
    """Measure, print the tables, write JSON."""
    options = _options()
    machine, model = report.machine(options.threads), smollm2()
    loads = [load.quick() if options.quick else load for load in LOADS]
    with ExitStack() as stack:
        clients = prepare(stack, model, say)
        runs = {load.name: measured(load, clients, model, options) for load in loads}
    medians = {name: {client: middle(found) for client, found in of.items()} for name, of in runs.items()}
    for name, of in medians.items():
        print(table.table(name, of) + "\n")
    found = [each for name, of in medians.items() for each in table.differences(name, of)]
    print("\n".join(f"- {each}" for each in found) or "nobody watched the wire: that takes root")
    if options.json:
        shown = [table.document(name, medians[name], by) for name, by in runs.items()]
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"machine": machine, "loads": shown}, indent=2) + "\n", encoding="utf-8")
    judged = [each for each in found if each.load == REAL.name or each.client == table.OURS]
    return 0 if options.quick or all(each.agrees for each in judged) else 1


def measured(load: Load, clients: Sequence[Client], model: Path, options: argparse.Namespace) -> Runs:
    """All rounds of a load; the clients take turns within each, so that whatever else happens meets all of them."""
    runs: Runs = {client.name: [] for client in clients}
    with Server(recipe(load, model, options.threads)) as server:
        clients[0].ask(load.quick(), server.port, _seed(load, clients[0], -1))  # what is lazy has been done
        for number in range(1 if options.quick else options.rounds):
            for client in clients:
                found = _once(load, client, server.port, _seed(load, client, number))
                runs[client.name].append(found)
                say(f"{load.name}, round {number + 1}, {client.name}: {_told(found)}")
    return runs


def _once(load: Load, client: Client, port: int, seed: int) -> Figures:
    watcher = _watcher(port)
    with ExitStack() as stack:
        if watcher is not None:
            stack.enter_context(watcher)
        answers = client.ask(load, port, seed)
        time.sleep(SETTLE_SECONDS)
    return figures(answers, None if watcher is None else watcher.exchanges())


def _watcher(port: int) -> Watcher | None:
    return Watcher(port) if os.geteuid() == 0 else None


def _seed(load: Load, client: Client, number: int) -> int:
    """No two runs ask alike."""
    return zlib.crc32(f"{load.name}, {client.name}, {number}".encode())


def _told(found: Figures) -> str:
    wire = "" if found.wire is None else f", {1e3 * found.wire.first:.1f} on the wire"
    return f"first token {1e3 * found.client.first:.1f} ms{wire}, per token {1e3 * found.client.per_token:.2f} ms"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="clients_agree", description="Three load clients on one server.")
    parser.add_argument("--quick", action="store_true", help="one short round: does everything run?")
    parser.add_argument("--rounds", type=int, default=3, help="how often each load is run (default: 3)")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", type=int, default=max(1, cores - 1), help="of the server; default: all but one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every run")
    return parser.parse_args()


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
