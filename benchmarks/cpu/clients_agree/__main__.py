"""`octavo bench` beside vLLM's load client and guidellm: three clients in turn, one server, and the wire between them.

    PYTHONPATH=engine:benchmarks:benchmarks/cpu python -m clients_agree [--quick] [--rounds N] [--json FILE]

The server has a processor, the clients another. As root, the packets are watched. The exit code is 1 when a figure that
another client reports differs by more than 5 % from what our records give by its definition, or a median of ours from
that of its own packets.
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
from dataclasses import asdict, dataclass
from pathlib import Path

import report
from checkpoint import smollm2

from cpu_figures.servers import Server

from . import table
from .agreement import Told, agreements
from .agreement import table as agreement_table
from .answers import Figures, figures, middle, on_the_wire
from .clients import Client, prepare
from .definitions import Definition
from .loads import LOADS, Load, held_to, processors, recipe
from .wire import Watcher

SETTLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Run:
    """A load, by one client, once."""

    figures: Figures
    told: Told


Runs = dict[str, list[Run]]  # by client


def main() -> int:
    """Measure, print the tables, write JSON."""
    options = _options()
    server, own = processors()
    os.sched_setaffinity(0, {own})  # and so all clients
    machine, model = report.machine(1), smollm2()
    loads = [load.quick() if options.quick else load for load in LOADS]
    with ExitStack() as stack:
        clients = prepare(stack, model, say)
        runs = {load.name: measured(load, clients, model, server, options) for load in loads}
    medians = {
        name: {client: middle([run.figures for run in of[client]]) for client in of} for name, of in runs.items()
    }
    for name, of in medians.items():
        print(table.table(name, of) + "\n")
    wire = [each for name, of in medians.items() for each in table.differences(name, of)]
    print("\n".join(f"- {each}" for each in wire) or "nobody watched the wire: that takes root")
    agreed = [each for name, of in runs.items() for each in agreements(name, *_apart(of), _definitions(clients))]
    print("\n" + agreement_table(agreed))
    if options.json:
        shown = [table.document(name, medians[name], _figures(by)) for name, by in runs.items()]
        document = {"machine": machine, "loads": shown, "agreements": [asdict(each) for each in agreed]}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    ours = [each for each in wire if each.client == table.OURS]
    fine = all(each.agrees for each in agreed) and all(each.agrees for each in ours)
    return 0 if options.quick or fine else 1


def measured(load: Load, clients: Sequence[Client], model: Path, server: int, options: argparse.Namespace) -> Runs:
    """All rounds of a load; the clients take turns within each, so that whatever else happens meets all of them."""
    runs: Runs = {client.name: [] for client in clients}
    with ExitStack() as stack:
        with held_to(server):
            port = stack.enter_context(Server(recipe(load, model))).port
        clients[0].ask(load.quick(), port, _seed(load, clients[0], -1))  # what is lazy in the server has been done
        for number in range(1 if options.quick else options.rounds):
            for client in clients:
                found = _once(load, client, port, _seed(load, client, number))
                runs[client.name].append(found)
                say(f"{load.name}, round {number + 1}, {client.name}: {_told(found.figures)}")
    return runs


def _once(load: Load, client: Client, port: int, seed: int) -> Run:
    """What counts of a load: all but the warm-up."""
    watcher = _watcher(port)
    with ExitStack() as stack:
        if watcher is not None:
            stack.enter_context(watcher)
        answers = client.ask(load, port, seed)
        time.sleep(SETTLE_SECONDS)
    seen = None if watcher is None else watcher.exchanges()
    if seen is not None and len(seen) != len(answers):
        raise ValueError(f"{client.name} tells of {len(answers)} answers, {len(seen)} were on the wire")
    counted, packets = answers[load.warmup :], None if seen is None else seen[load.warmup :]
    return Run(figures(counted, packets), Told(counted, on_the_wire(packets or (), load.output_tokens)))


def _apart(runs: Runs) -> tuple[Told, dict[str, Told]]:
    """What our client told of all rounds, and what the others did."""
    told = {
        name: Told(
            [answer for run in found for answer in run.told.answers],
            [packet for run in found for packet in run.told.packets],
        )
        for name, found in runs.items()
    }
    return told.pop(table.OURS), told


def _definitions(clients: Sequence[Client]) -> dict[str, Sequence[Definition]]:
    return {client.name: client.definitions for client in clients}


def _figures(runs: Runs) -> dict[str, list[Figures]]:
    return {name: [run.figures for run in found] for name, found in runs.items()}


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
    parser.add_argument("--rounds", type=int, default=2, help="how often each load is run (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every run")
    return parser.parse_args()


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
