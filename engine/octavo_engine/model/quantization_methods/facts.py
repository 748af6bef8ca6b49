"""What the methods' configs have in common."""

from __future__ import annotations

from collections.abc import Collection

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.fields import Fields

WHOLE_ROW = -1  # how all of them write that a row is one group


def one_of(config: Fields, key: str, value: object, supported: Collection[object]) -> None:
    """Raise ModelUnsupported, naming the field and what it may be, unless it is one of those."""
    if value not in supported:
        shown = ", ".join(map(str, supported))
        raise ModelUnsupported(f"{config.name}: {key} {str(value)[:40]!r} is not supported; supported are {shown}")


def group_size(config: Fields, key: str, default: int) -> int | None:
    """Inputs of a group; None where all of a row are one."""
    value = config.integer(key, default)
    if value != WHOLE_ROW and not 0 < value <= 1 << 24:
        raise config.wrong(key, value, f"must be positive, or {WHOLE_ROW} for whole rows")
    return None if value == WHOLE_ROW else value
