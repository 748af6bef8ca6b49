"""Retrieval-augmented questions with prefix caching and chunked prefill on and off: `make bench-rag`.

    PYTHONPATH=engine:hack:benchmarks:benchmarks/cpu python -m rag_case [--quick] [--fresh] [--document FILE]...

Four servers in turn under the same load. What was measured is kept, so that a second run goes on where the first one
was stopped. The exit code is 1 when a setting's gain cannot be seen.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import report
from checkpoint import smollm2

import octavo_engine
import published
from cpu_figures.results import Kept
from cpu_figures.run import identity_of

from . import picture, serving, table, words
from .gains import Gain, gains, spread
from .load import WAYS, Load, Way
from .serving import Cell

COUNT, QUICK_COUNT = 40, 4
FORM = 1
"""Of the cells: another one measures everything anew."""


def main() -> int:
    """Measure what is missing, print the tables, write JSON, the picture and the documents' tables."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end with us
    if options.fresh:
        shutil.rmtree(options.folder, ignore_errors=True)
    machine = report.machine(options.threads)
    if machine["load_average_before"] > machine["cores"] / 2:
        say(f"the machine is busy (load average {machine['load_average_before']}): figures will be high and uneven")
    load, cells = measured(options, Kept(options.folder / "cells"))
    print(table.block(words.ENGLISH, machine, load, cells))
    found = gains(cells)
    print("\n" + "\n".join(f"- {gain}" for gain in found))
    _write(options, machine, load, cells, found)
    return 0 if options.quick or all(gain.visible for gain in found) else 1


def measured(options: argparse.Namespace, kept: Kept) -> tuple[Load, dict[Way, Cell]]:
    """The load that suits this machine, and all four ways under it."""
    model, threads = smollm2(), options.threads
    common = {"form": FORM, "engine": identity_of(Path(octavo_engine.__file__).parent), "threads": threads}
    cold = kept.get_or(common | {"what": "cold"}, lambda: {"seconds": serving.cold_seconds(model, threads)})
    load = Load.of(cold["seconds"], QUICK_COUNT if options.quick else options.questions)
    say(f"a cold prompt takes {cold['seconds']:.2f} s: {load.rate:.2f} questions a second")
    cells = {}
    for way in WAYS:
        key = common | {"what": way.key, "load": asdict(load)}
        if kept.find(key) is None:
            say(f"{way.key}: {load.count} questions, about {load.count / load.rate:.0f} s")
            kept.keep(key, asdict(serving.serve(model, way, load, threads)))
        cells[way] = Cell.read(kept.find(key) or {})
    return load, cells


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rag_case", description="Prefix caching and chunked prefill on and off.")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_COUNT} questions each: does everything run?")
    parser.add_argument("--questions", type=int, default=COUNT, help=f"so many, each way (default: {COUNT})")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all processors")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--folder", type=Path, default=Path("build/bench-rag"), help="where cells are kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="default: figures.json in the folder")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="default: figures.svg in the folder")
    parser.add_argument(
        "--document",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="put the tables between this file's marks, too; FILE.ja.md gets them in Japanese",
    )
    options = parser.parse_args()
    if options.quick:  # figures of a few questions are not for readers
        options.document, options.picture = [], None
    return options


def _write(
    options: argparse.Namespace,
    machine: Mapping[str, Any],
    load: Load,
    cells: Mapping[Way, Cell],
    found: list[Gain],
) -> None:
    place = options.json or options.folder / "figures.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": dict(machine),
        "load": asdict(load),
        "ways": {way.key: _figures(cell) for way, cell in cells.items()},
        "gains": [asdict(gain) | {"visible": gain.visible} for gain in found],
    }
    place.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    shown = options.picture or options.folder / "figures.svg"
    picture.draw(cells, shown)
    for file in options.document:
        said = words.of(file.name)
        link = published.linked(shown, file, said.picture)
        published.put(file, "bench-rag", f"{table.block(said, machine, load, cells)}\n\n{link}")


def _figures(cell: Cell) -> dict[str, Any]:
    """A cell without its single gaps."""
    value = asdict(cell)
    return value | {"gaps": asdict(spread(cell.gaps))}


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
