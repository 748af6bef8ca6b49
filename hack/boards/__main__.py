"""Writes the dashboards, or with `--check` says which are not up to date."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from boards import service

FOLDER = Path(__file__).resolve().parents[2] / "dashboards"


def render() -> dict[Path, str]:
    """The text of each file, the same on every run."""
    boards = {"service.json": service.board()}
    return {FOLDER / name: _json(board.build()) for name, board in boards.items()}


def _json(model: object) -> str:
    return json.dumps(model, cls=JSONEncoder, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def outdated() -> list[Path]:
    """The files that differ from what the code says."""
    return [path for path, text in render().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main() -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m boards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a dashboard is not up to date")
    if parser.parse_args().check:
        stale = outdated()
        for path in stale:
            print(f"{path.name} is not up to date: run `make generate`", file=sys.stderr)
        return 1 if stale else 0
    FOLDER.mkdir(exist_ok=True)
    for path, text in render().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(FOLDER.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
