"""`octavo bench` beside vLLM's load client and guidellm: one server, and the wire between them.

    PYTHONPATH=engine:benchmarks:benchmarks/cpu python -m clients_agree [--quick] [--rounds N] [--json FILE]

The server has a processor, the clients another. First they ask in turns, and as root the packets are watched: does each
tell what its packets say? Then, as root, ours asks beside each of the others: do two clients tell the same? The exit
code is 1 when a figure that another client reports and what our records of the same time give by its definition differ
by more than 5 %, each beside its own packets, or a median of ours from that of its own packets.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import report
from checkpoint import smollm2

from cpu_figures.servers import Server

from . import table
from .agreement import Agreement, agreements
from .agreement import table as agreement_table
from .answers import Figures, figures, middle
from .clients import Client, prepare
from .loads import IN_TURNS, TOGETHER, Load, held_to, processors, recipe
from .together import together
from .wire import Watcher

SETTLE_SECONDS = 0.5
Runs = dict[str, list[Figures]]  # by client


def main() -> int:
    """Measure, print the tables, write JSON."""
    options = _options()
    server, own = processors()
    os.sched_setaffinity(0, {own})  # and so do all clients
    machine, model = report.machine(1), smollm2()
    with ExitStack() as stack:
        clients = prepare(stack, model, say)
        runs = {load.name: in_turns(load, clients, model, server, options) for load in _loads(IN_TURNS, options)}
        agreed = [each for load in _loads(TOGETHER, options) for each in beside(load, clients, model, server)]
    medians = {name: {client: middle(found) for client, found in of.items()} for name, of in runs.items()}
    for name, of in medians.items():
        print(table.table(name, of) + "\n")
    wire = [each for name, of in medians.items() for each in table.differences(name, of)]
    print("\n".join(f"- {each}" for each in wire) or "nobody watched the wire: that takes root")
    print("\n" + agreement_table(agreed))
    if options.json:
        shown = [table.document(name, medians[name], by) for name, by in runs.items()]
        document = {"machine": machine, "loads": shown, "agreements": [asdict(each) for each in agreed]}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    ours = [each for each in wire if each.client == table.OURS]
    fine = all(each.agrees for each in agreed) and all(each.agrees for each in ours)
    return 0 if options.quick or fine else 1


def in_turns(load: Load, clients: Sequence[Client], model: Path, server: int, options: argparse.Namespace) -> Runs:
    """All rounds of a load; the clients take turns within each, so that whatever else happens meets all of them."""
    runs: Runs = {client.name: [] for client in clients}
    with _served(load, clients[0], model, server) as port:
        for number in range(1 if options.quick else options.rounds):
            for client in clients:
                found = _once(load, client, port, _seed(load, client, number))
                runs[client.name].append(found)
                say(f"{load.name}, round {number + 1}, {client.name}: {_told(found)}")
    return runs


def beside(load: Load, clients: Sequence[Client], model: Path, server: int) -> list[Agreement]:
    """What each other client reports, and ours, which asks at the same time; nothing where nobody may watch."""
    if os.geteuid() != 0:
        return []
    ours, *others = clients
    found: list[Agreement] = []
    with _served(load, ours, model, server) as port:
        for other in others:
            mine, theirs = together(load, ours, other, port, _seed(load, other, 0))
            found += agreements(load.name, mine, theirs, other.name, other.definitions)
            say(f"{load.name}: octavo bench and {other.name}")
    return found


@contextmanager
def _served(load: Load, client: Client, model: Path, processor: int) -> Iterator[int]:
    """The port of a load's server; what is lazy in it has been done."""
    with ExitStack() as stack:
        with held_to(processor):
            port = stack.enter_context(Server(recipe(load, model))).port
        client.ask(load.quick(), port, _seed(load, client, -1))
        yield port


def _once(load: Load, client: Client, port: int, seed: int) -> Figures:
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
    return figures(answers[load.warmup :], None if seen is None else seen[load.warmup :])


def _loads(loads: Sequence[Load], options: argparse.Namespace) -> list[Load]:
    return [load.quick() if options.quick else load for load in loads]


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
    parser.add_argument("--rounds", type=int, default=2, help="how often each load is run in turns (default: 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every run")
    return parser.parse_args()


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
