"""Writes what is generated from the charts, or with `--check` says which files are not up to date."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bundle import manifests, values
from node.config import CHECKOUT


def render() -> dict[Path, str]:
    """The text of each file, the same on every run."""
    files = {CHECKOUT / "kustomize" / item.path: manifests.render(item) for item in manifests.BUNDLES}
    for chart in (CHECKOUT / "charts").iterdir():
        readme = chart / "README.md"
        files[readme] = values.with_table(readme.read_text(), (chart / "values.yaml").read_text())
    return files


def main() -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bundle", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is not up to date")
    check = parser.parse_args().check
    files = render()
    stale = {path: text for path, text in files.items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        name = path.relative_to(CHECKOUT)
        if check:
            print(f"{name} is not up to date: run `make generate`", file=sys.stderr)
        else:
            path.write_text(text)
            print(f"wrote {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
