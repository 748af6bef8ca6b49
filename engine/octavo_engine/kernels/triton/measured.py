"""Launches that were measured on a device, kept in the user's cache: `octavo tune` writes them, a start reads them.

They are for one device, one compiler and one state of the kernels. Whatever else is in the file is left there and not
used; a file that cannot be read is as good as none, and a warning says so.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from octavo_engine.kernels.triton.targets import Launch, Row
from octavo_engine.machine_cache import folder

log = logging.getLogger(__name__)

FILE = "launches.json"
MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a measurement depends on; any difference makes it worthless."""

    device: str  # as CUDA calls it
    triton: str  # version of the compiler
    kernels: str  # digest of their source

    @classmethod
    def of(cls, device: str) -> Circumstances:
        """Those of this installation, on that device."""
        return cls(device, version("triton"), digest_of(Path(__file__).parent))


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was found on one device."""

    circumstances: Circumstances
    octavo: str  # version; said for people
    rows: tuple[Row, ...]


@cache
def digest_of(sources: Path) -> str:
    """Changes with every change of a kernel."""
    total = hashlib.sha256()
    for file in sorted(sources.glob("*.py")):
        total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:16]


def place() -> Path:
    """The file."""
    return folder() / FILE


def rows_for(circumstances: Circumstances) -> tuple[Row, ...]:
    """The rows that were measured under them; none where nothing was, and a warning where that was long ago."""
    measurements = read()
    rows = _find(measurements, circumstances)
    if not rows and any(other.circumstances.device == circumstances.device for other in measurements):
        log.warning("this device's launches were measured with other kernels and are not used: run octavo tune again")
    return rows


def find(circumstances: Circumstances) -> tuple[Row, ...]:
    """The rows that were measured under them; none where nothing was."""
    return _find(read(), circumstances)


def _find(measurements: Sequence[Measurement], circumstances: Circumstances) -> tuple[Row, ...]:
    return next((each.rows for each in measurements if each.circumstances == circumstances), ())


def read() -> list[Measurement]:
    """All that the file has; empty when there is none, or no home to look for it in."""
    try:
        path = place()
    except RuntimeError:
        return []
    try:
        if not path.exists():
            return []
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        return [_measurement(entry) for entry in json.loads(path.read_text("utf-8"))["measurements"]]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        log.warning("%s is not used: %s: %s", path, type(error).__name__, error)
        return []


def keep(measurement: Measurement) -> Path:
    """Write it in place of an earlier one of the same device, whole or not at all; raises OSError, or RuntimeError
    where there is no home to keep it in."""
    circumstances = measurement.circumstances
    others = [other for other in read() if other.circumstances.device != circumstances.device]
    entries = [_entry(each) for each in [*others, measurement]]
    path = place()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=FILE, delete=False, encoding="utf-8") as scratch:
        json.dump({"measurements": entries}, scratch, indent=1)
    os.replace(scratch.name, path)
    return path


def merged(before: Sequence[Row], found: Sequence[Row]) -> tuple[Row, ...]:
    """`found`, and what `before` has for other kernels and sizes: another model's."""
    new = {(row.kernel, row.size) for row in found}
    return (*found, *(row for row in before if (row.kernel, row.size) not in new))


def _entry(measurement: Measurement) -> dict[str, Any]:
    circumstances = measurement.circumstances
    return {
        "device": circumstances.device,
        "triton": circumstances.triton,
        "kernels": circumstances.kernels,
        "octavo": measurement.octavo,
        "rows": [
            {
                "kernel": row.kernel,
                "capability": row.capability,
                "size": row.size,
                "warps": row.launch.warps,
                "stages": row.launch.stages,
                "blocks": dict(row.launch.blocks),
            }
            for row in measurement.rows
        ],
    }


def _measurement(entry: dict[str, Any]) -> Measurement:
    """One entry, checked; raises ValueError, TypeError, KeyError or AttributeError."""
    circumstances = Circumstances(str(entry["device"]), str(entry["triton"]), str(entry["kernels"]))
    return Measurement(circumstances, str(entry["octavo"]), tuple(_row(row) for row in entry["rows"]))


def _row(entry: dict[str, Any]) -> Row:
    blocks = {str(name): _number(size) for name, size in entry["blocks"].items()}
    launch = Launch(_number(entry["warps"]), _number(entry["stages"]), blocks)
    return Row(str(entry["kernel"]), _number(entry["capability"]), _number(entry["size"]), launch)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is no positive whole number")
    return value
