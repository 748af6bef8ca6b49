"""Compares policies and prints a table; see `--help`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from .comparison import POLICIES, Result, compare
from .scenarios import SCENARIOS
from .table import markdown


def main() -> int:
    parser = argparse.ArgumentParser(prog="serving_simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each scenario, each with arrivals of its own")
    parser.add_argument("--only", nargs="*", metavar="SCENARIO", help="scenarios by name; all, if none is given")
    parser.add_argument("--policy", nargs="*", choices=POLICIES, default=list(POLICIES), help="policies by name")
    parser.add_argument("--picture", type=Path, help="where to write the picture, an SVG file")
    options = parser.parse_args()
    chosen = [scenario for scenario in SCENARIOS if not options.only or scenario.name in options.only]
    results: list[Result] = []
    for scenario in chosen:
        started = time.perf_counter()
        results += compare([scenario], range(1, options.seeds + 1), options.policy)
        print(f"{scenario.name}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    print(markdown(results))
    return 0


sys.exit(main())
