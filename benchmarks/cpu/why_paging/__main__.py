"""Why blocks and continuous batching, measured: `make bench-why`.

PYTHONPATH=engine:benchmarks:benchmarks/cpu python -m why_paging [--quick] [--document FILE] [--picture FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from checkpoint import smollm2

import published

from . import picture
from .serving import WAYS, serve, wishes
from .table import table


def main() -> int:
    """Serve the load three times, print the table, write the picture and, if asked, the document's table."""
    parser = argparse.ArgumentParser(prog="why_paging", description="Three ways to use one pool.")
    parser.add_argument("--quick", action="store_true", help="a sixth of the load: does everything run?")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all processors")
    parser.add_argument("--picture", type=Path, default=Path("build/why_paging.svg"), metavar="FILE")
    parser.add_argument("--document", type=Path, metavar="FILE", help="put the table between this file's marks")
    options = parser.parse_args()
    model, load = smollm2(), wishes(16 if options.quick else 96)
    ways = []
    for way in WAYS:
        print(way.name, file=sys.stderr, flush=True)
        ways.append(serve(model, way, load, options.threads))
    print(table(ways))
    picture.draw(ways, options.picture)
    if options.document:
        words = "Slots taken and used, requests that run at once, tokens a second"
        link = published.linked(options.picture, options.document, words)
        published.put(options.document, "bench-why", f"{table(ways)}\n\n{link}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
