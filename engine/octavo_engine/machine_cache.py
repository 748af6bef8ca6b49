"""Measured machines, kept in the user's cache between starts. A cache that cannot be used costs a moment."""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from pathlib import Path

from octavo_engine.roofline import Machine

log = logging.getLogger(__name__)

FILE = "machines.json"
MAX_BYTES = 1 << 20


def folder() -> Path:
    """Where Octavo keeps what is quick to lose: the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "octavo"


def load() -> dict[str, Machine]:
    """The machines by key; empty when there are none, or none that can be read."""
    try:
        path = folder() / FILE
        entries = json.loads(path.read_text("utf-8")) if path.stat().st_size <= MAX_BYTES else {}
        return {str(key): _machine(entry) for key, entry in entries.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError):
        return {}


def keep(key: str, measured: Machine) -> Machine:
    """Remember the better of `measured` and what was there; returns it."""
    machines = load()
    before = machines.get(key, measured)
    best = Machine(
        name=measured.name,
        bandwidth=max(before.bandwidth, measured.bandwidth),
        flops=max(before.flops, measured.flops),
    )
    try:
        _write(machines | {key: best})
    except (OSError, RuntimeError) as error:
        log.debug("what was measured of this machine is not kept: %s", error)
    return best


def _write(machines: dict[str, Machine]) -> None:
    """Whole or not at all: two starts may write at once, and the later one wins."""
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    entries = {key: {"name": m.name, "bandwidth": m.bandwidth, "flops": m.flops} for key, m in machines.items()}
    with tempfile.NamedTemporaryFile("w", dir=place, prefix=FILE, delete=False) as scratch:
        json.dump(entries, scratch, indent=1)
    os.replace(scratch.name, place / FILE)


def _machine(entry: dict[str, object]) -> Machine:
    """One entry, checked; raises ValueError, TypeError or KeyError."""
    bandwidth, flops = entry["bandwidth"], entry["flops"]
    if not isinstance(bandwidth, float | int) or not isinstance(flops, float | int):
        raise TypeError("rates are numbers")
    if not (math.isfinite(bandwidth) and math.isfinite(flops) and bandwidth > 0 and flops > 0):
        raise ValueError("rates are positive")
    return Machine(name=str(entry["name"]), bandwidth=float(bandwidth), flops=float(flops))
