"""Octavo beside vLLM and transformers on this machine's processors: `make bench-cpu`.

    PYTHONPATH=engine:benchmarks:benchmarks/cpu python -m cpu_figures [--quick] [--fresh] [--document FILE]

Peers are installed, and what was measured is kept, so that a second run goes on where the first one was stopped. The
exit code is 1 when a goal's lower bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import report
from checkpoint import smollm2

import octavo_engine
import published
from octavo_engine.model.spec import read_spec
from octavo_engine.model.tensors.costs import cost_of

from . import direct, limits, loads, long_step, peers, picture, servers
from .client import LoadClient
from .outcome import Outcome
from .results import Kept
from .run import Contender, Plan, Run, identity_of


def main() -> int:
    """Measure what is missing, print the tables, write JSON and the picture."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end with us
    if options.fresh:
        shutil.rmtree(options.folder, ignore_errors=True)
    outcome = _measured(options)
    print(outcome.text())
    _write(options, outcome)
    return 0 if all(goal.verdict != "short" for goal in outcome.goals()) else 1


def _measured(options: argparse.Namespace) -> Outcome:
    model, vllm, kept = smollm2(), peers.prepare(peers.VLLM, say) / "vllm", Kept(options.folder / "cells")
    machine = report.machine(options.threads) | {"peer": " ".join(peers.VLLM.packages)}
    dtype_key = {"what": "dtype", "cpu": machine["cpu"], "threads": options.threads, "torch": machine["torch"]}
    dtype = kept.get_or(dtype_key, lambda: {"name": limits.torch_dtype(options.threads)})["name"]
    machine["peer_dtype"] = dtype
    if machine["load_average_before"] > machine["cores"] / 2:
        say(f"the machine is busy (load average {machine['load_average_before']}): figures will be low and uneven")
    limit_key = {"what": "limits", "cpu": machine["cpu"], "threads": options.threads}
    before = limits.Limits(**kept.get_or(limit_key, lambda: limits.measure(options.threads)))
    ours = identity_of(Path(octavo_engine.__file__).parent)
    step = None if options.quick else long_step.measure(model, options.threads, ours, kept, say)
    plan = _plan(options, model, vllm, dtype, ours)
    run = Run(plan, kept, say)
    run.measure()
    peer, *own = plan.contenders
    after = limits.Limits(**kept.get_or(limit_key | {"when": "after"}, lambda: limits.measure(options.threads)))
    return Outcome(
        machine=machine,
        rounds=run.rounds,
        limits=limits.best(before, after),
        cost=cost_of(read_spec(str(model)), width=2),
        figures={contender.name: run.figures(contender) for contender in (*own, peer)},
        long_step=step,
        starts={contender.name: run.start(contender) for contender in (*own, peer) if not contender.only_decodes},
        generate={} if options.quick else direct.measure(model, options.threads, dtype, kept, say),
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="cpu_figures", description="Octavo beside its peers on this machine.")
    parser.add_argument(
        "--quick", action="store_true", help="one short round, the peer not compiled: does everything run?"
    )
    parser.add_argument(
        "--rounds", type=int, default=2, help="how often each load is run, if there is time (default: 2)"
    )
    parser.add_argument(
        "--minutes", type=float, default=20, help="begin no round after the first that would end later (default: 20)"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all processors")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--folder", type=Path, default=Path("build/bench-cpu"), help="where cells are kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: figures.json in the folder")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="default: figures.svg in the folder")
    parser.add_argument("--document", type=Path, metavar="FILE", help="also put the tables between this file's marks")
    return parser.parse_args()


def _plan(options: argparse.Namespace, model: Path, vllm: Path, dtype: str, ours: str) -> Plan:
    """`ours`: the identity of our own sources."""
    no_drafts = servers.octavo(model, options.threads, "--num-speculative-tokens", 0, name=servers.NO_DRAFTS)
    cache = peers.cache_folder() / "benchmarks" / "vllm-cache"
    identity = f"{peers.VLLM.key}, {dtype}" + ", not compiled" * options.quick
    peer = servers.vllm(vllm, model, options.threads, cache, dtype=dtype, compiled=not options.quick)
    return Plan(
        contenders=(
            Contender(peer, identity),
            Contender(servers.octavo(model, options.threads), ours),
            Contender(no_drafts, ours, only_decodes=True),
        ),
        loads=loads.QUICK if options.quick else loads.FULL,
        rounds=1 if options.quick else options.rounds,
        threads=options.threads,
        client=LoadClient(vllm.with_name("python"), model),
        seconds=60 * options.minutes,
    )


def _write(options: argparse.Namespace, outcome: Outcome) -> None:
    place = options.json or options.folder / "figures.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(outcome.document(), indent=2) + "\n", encoding="utf-8")
    shown = options.picture or options.folder / "figures.svg"
    picture.draw(outcome.figures, shown)
    if options.document:
        link = published.linked(shown, options.document, "Tokens a second and the slowest waits, server beside server")
        published.put(options.document, "bench-cpu", f"{outcome.text()}\n\n{link}")


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
