"""Writes the tables of fields into docs/API.md, or with `--check` says whether they are up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from api_fields.table import with_tables

DOCUMENT = Path(__file__).parents[2] / "docs" / "API.md"


def main() -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m api_fields", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table is not up to date")
    check = parser.parse_args().check
    text = DOCUMENT.read_text()
    made = with_tables(text)
    if made == text:
        return 0
    if check:
        print("docs/API.md is not up to date: run `make generate`", file=sys.stderr)
        return 1
    DOCUMENT.write_text(made)
    print("wrote docs/API.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
