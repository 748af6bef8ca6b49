"""In which order files are taken by workers that run side by side, each a file at a time.

A long file that is begun last is what everybody then waits for. Without an order of ours, the files with the most tests
would come first, and those that take longest are mostly stories: few tests, each with much to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest


def name_of(item: pytest.Item, folder: Path) -> str | None:
    """The path of a test's file below a folder; None where it lies elsewhere."""
    return str(item.path.relative_to(folder)) if item.path.is_relative_to(folder) else None


def put_first(items: list[pytest.Item], folder: Path, files: Sequence[str]) -> None:
    """Moves the tests of some files of a folder to the front, in the order given; the others keep theirs."""
    ranks = {name: rank for rank, name in enumerate(files)}
    items.sort(key=lambda item: ranks.get(name_of(item, folder) or "", len(ranks)))
