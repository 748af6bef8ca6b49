"""Which of our images stay: the newest two of a name, and those of the last hour, which others may be testing with."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from node.config import Settings

_NEWEST = 2
_RECENT_SECONDS = 3600.0
_STARTING_SECONDS = 600.0


def loaded(settings: Settings, reference: str) -> set[str]:
    """Note that an image was just asked for; returns those of its name that are to stay."""
    name = reference.rpartition(":")[0]
    record = _record(settings, name)
    times = {**_read(record), reference: time.time()}
    kept = stay(times, time.time())
    record.parent.mkdir(parents=True, exist_ok=True)
    partial = record.with_suffix(".partial")
    partial.write_text(json.dumps({item: times[item] for item in kept}))
    partial.rename(record)
    return kept


def recent(settings: Settings, name: str) -> set[str]:
    """Images of a name that were asked for so shortly ago that somebody is about to start them."""
    return just_asked(_read(_record(settings, name)), time.time())


def just_asked(times: Mapping[str, float], now: float) -> set[str]:
    """Of images by the time in seconds at which each was last asked for, those that stay even when room is short."""
    return {item for item, asked in times.items() if now - asked < _STARTING_SECONDS}


def stay(times: Mapping[str, float], now: float) -> set[str]:
    """Of images by the time in seconds at which each was last asked for, those that stay."""
    newest = sorted(times, key=lambda item: times[item], reverse=True)[:_NEWEST]
    return {*newest, *(item for item, asked in times.items() if now - asked < _RECENT_SECONDS)}


def _record(settings: Settings, name: str) -> Path:
    return settings.cache / "images" / f"{name.rpartition('/')[2]}.json"


def _read(record: Path) -> dict[str, float]:
    try:
        found: dict[str, float] = json.loads(record.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found
