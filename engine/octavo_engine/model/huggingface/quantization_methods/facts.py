"""What the methods' configs have in common."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.fields import Fields
from octavo_engine.model.values.name_patterns import NamePattern, ways

WHOLE_ROW = -1  # how all of them write that a row is one group
# Each module's name is held against patterns until one fits. Some tools name every module of a hundred layers.
MOST_PATTERNS = 2048
MOST_WAYS = 4_000_000  # in which all expressions of a field can match one name, at most


def few(config: Fields, key: str, count: int) -> None:
    """Raise ModelUnsupported, naming the field and the limit, where it has more patterns than are read."""
    if count > MOST_PATTERNS:
        raise ModelUnsupported(f"{config.name}: {key} has {count} patterns; at most {MOST_PATTERNS} are read")


def soon_matched(config: Fields, key: str, patterns: Iterable[NamePattern]) -> None:
    """The same where each of them is harmless, but all together could take too long."""
    if sum(ways(pattern.expression) for pattern in patterns) > MOST_WAYS:
        raise ModelUnsupported(f"{config.name}: the patterns in {key} can match in too many ways; limit {MOST_WAYS:,}")


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
