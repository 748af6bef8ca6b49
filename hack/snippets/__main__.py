"""Writes the code on docs/CLIENTS.md, or with `--check` says whether it is up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from snippets.page import with_code

CHECKOUT = Path(__file__).parents[2]
DOCUMENT = CHECKOUT / "docs" / "CLIENTS.md"


def main() -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m snippets", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the code is not up to date")
    check = parser.parse_args().check
    text = DOCUMENT.read_text("utf-8")
    made = with_code(text, lambda path: (CHECKOUT / path).read_text("utf-8"))
    if made == text:
        return 0
    if check:
        print("docs/CLIENTS.md is not up to date: run `make generate`", file=sys.stderr)
        return 1
    DOCUMENT.write_text(made, "utf-8")
    print("wrote docs/CLIENTS.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
