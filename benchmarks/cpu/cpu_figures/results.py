"""What was measured, kept cell by cell: an interrupted run goes on where it was. Times are in seconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Figures:
    """One server under one load, once, as the load client saw it."""

    tokens_per_second: float  # generated, over the whole run
    ttft_mean: float
    ttft_median: float
    ttft_p99: float
    itl_median: float  # between two pieces of a stream, each of one token or of several that one step gave
    itl_p99: float
    tpot_mean: float  # a request's time after its first token, for each token
    ttfts: tuple[float, ...]  # in the order in which requests were sent
    prompt_tokens: int  # of all requests


@dataclass(frozen=True, slots=True)
class Start:
    """A server from its command to its end. Bytes are proportional: pages that processes share count once."""

    ready_seconds: float
    ready_bytes: int
    loaded_bytes: int | None = None  # after the loads

    def beside_pool(self, pool_bytes: int) -> int | None:
        """Bytes beside the KV pool; None where the pool is not in memory yet, so that nothing can be said."""
        most = max(self.ready_bytes, self.loaded_bytes or 0)
        return most - pool_bytes if self.ready_bytes >= pool_bytes else None


def middle(runs: Iterable[Figures]) -> Figures:
    """The median of several runs, field by field; a list of times is taken from the first."""
    rows = [asdict(run) for run in runs]
    names = [name for name in rows[0] if name != "ttfts"]
    return Figures(ttfts=tuple(rows[0]["ttfts"]), **{name: median(row[name] for row in rows) for name in names})


class Kept:
    """Cells in a folder, one file each. What a cell depends on is its key: when that changes, it is measured anew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get_or(self, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The cell's value, measured now unless it is kept."""
        found = self.find(key)
        if found is None:
            found = measure()
            self.keep(key, found)
        return found

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The kept value."""
        try:
            value: dict[str, Any] = json.loads(self._file(key).read_text(encoding="utf-8"))["value"]
        except FileNotFoundError:
            return None
        return value

    def keep(self, key: dict[str, Any], value: dict[str, Any]) -> None:
        """Write the cell, whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        scratch = self._file(key).with_suffix(".part")
        scratch.write_text(json.dumps({"key": key, "value": value}, indent=1) + "\n", encoding="utf-8")
        scratch.replace(self._file(key))

    def _file(self, key: dict[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
        return self._folder / f"{digest}.json"
