"""Writes the dashboards, the rules and the chart's copies of both, or with `--check` says which are not up to date."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from boards import fleet, operator_board, rules, service, symptoms

CHECKOUT = Path(__file__).resolve().parents[2]
FOLDER = CHECKOUT / "dashboards"
CHART = CHECKOUT / "charts" / "octavo-operator" / "files"
"""Helm reads nothing outside of a chart."""
RULES = "rules.yaml"
BOARDS: dict[str, Callable[[], Dashboard]] = {
    "service.json": service.board,
    "fleet.json": fleet.board,
    "operator.json": operator_board.board,
    "what-is-wrong.json": symptoms.board,
}


def render() -> dict[Path, str]:
    """The text of each file, the same on every run."""
    files = {FOLDER / RULES: rules.text(rules.everything()), CHART / RULES: rules.text(rules.once())}
    for name, make in BOARDS.items():
        board = make().build()
        files[FOLDER / name] = _json(board, indent=2)
        # A ConfigMap and a release's record have a limit of about a megabyte: no blanks there.
        files[CHART / "dashboards" / name] = _json(board, indent=None)
    return files


def _json(model: object, indent: int | None) -> str:
    separators = (",", ": ") if indent else (",", ":")
    made = json.dumps(model, cls=JSONEncoder, indent=indent, separators=separators, sort_keys=True, ensure_ascii=False)
    return made + "\n"


def outdated() -> list[Path]:
    """The files that differ from what the code says."""
    return [path for path, text in render().items() if not path.exists() or path.read_text(encoding="utf-8") != text]


def main() -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m boards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    if parser.parse_args().check:
        stale = outdated()
        for path in stale:
            print(f"{path.relative_to(CHECKOUT)} is not up to date: run `make generate`", file=sys.stderr)
        return 1 if stale else 0
    for path, text in render().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(CHECKOUT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
