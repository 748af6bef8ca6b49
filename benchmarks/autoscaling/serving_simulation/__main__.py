"""Compares scaling policies in virtual time: prints a table, or writes it and a picture into the documentation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .comparison import POLICIES, compare
from .scenarios import SCENARIOS
from .table import markdown, replace_in


def main() -> int:
    """The command; see `--help`."""
    parser = argparse.ArgumentParser(prog="serving_simulation", description=__doc__)
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--seeds", type=int, default=5, help="runs of each load, each with arrivals of its own")
    parser.add_argument("--only", nargs="*", choices=names, default=names, metavar="LOAD", help=", ".join(names))
    parser.add_argument("--policies", nargs="*", choices=POLICIES, default=list(POLICIES), metavar="POLICY",
                        help=", ".join(POLICIES))  # fmt: skip
    parser.add_argument("--document", type=Path, help="a file in Markdown that has the table's marks")
    parser.add_argument("--picture", type=Path, help="an SVG file to write")
    options = parser.parse_args()
    chosen = [scenario for scenario in SCENARIOS if scenario.name in options.only]
    results = compare(chosen, range(1, options.seeds + 1), options.policies)
    print(markdown(results))
    if options.document:
        replace_in(options.document, markdown(results))
    if options.picture:
        from .picture import draw  # noqa: PLC0415 (tests need no drawing)

        draw(results, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
