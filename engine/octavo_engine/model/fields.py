"""JSON objects whose values are checked as they are taken: every complaint names the file and the field."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from octavo_engine.errors import CheckpointInvalid, ModelNotFound

MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_NUMBER = sys.float_info.max  # whole numbers in JSON have no end, and those above this are no float


class Fields:
    """A JSON object whose values are checked as they are taken; every complaint names file and field."""

    def __init__(self, values: dict[str, Any], name: str) -> None:
        self.values, self.name = values, name

    def has(self, key: str) -> bool:
        """True when the field is there and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, value, "must be a whole number")
        return value

    def size(self, key: str, most: int, default: int | None = None) -> int:
        """A whole number from 1 to `most`: what others are computed from."""
        value = self.integer(key, default)
        if not 0 < value <= most:
            raise self.wrong(key, value, f"must be 1 to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_NUMBER:
            raise self.wrong(key, value, "must be a finite number")
        return float(value)

    def between(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """A number from `low` to `high`, both included."""
        value = self.number(key, default)
        if not low <= value <= high:
            raise self.wrong(key, value, f"must be {low:g} to {high:g}")
        return value

    def positive(self, key: str, high: float, default: float | None = None) -> float:
        """A number above 0, up to `high`."""
        value = self.between(key, 0.0, high, default)
        if value == 0:
            raise self.wrong(key, value, "must be above 0")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "must be true or false")
        return value

    def section(self, key: str) -> Fields:
        """A nested object; empty when absent."""
        value = self.values.get(key) or {}
        if not isinstance(value, dict):
            raise self.wrong(key, value, "must be an object")
        return Fields(value, f"{self.name}: {key}")

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; empty when absent."""
        value = self.values.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
            raise self.wrong(key, value, "must be token ids")
        return tuple(ids)

    def words(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty when absent."""
        value = self.values.get(key)
        words = [] if value is None else value
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise self.wrong(key, value, "must be a list of strings")
        return tuple(words)

    def wrong(self, key: str, value: object, rule: str) -> CheckpointInvalid:
        """The error for a field that breaks `rule`."""
        return CheckpointInvalid(f"{self.name}: {key} is {str(value)[:80]}; it {rule}")

    def _take(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None and default is None:
            raise CheckpointInvalid(f"{self.name}: {key} is missing")
        return default if value is None else value


def read_json(path: Path) -> Fields:
    """Read a JSON object; raises ModelNotFound or CheckpointInvalid naming the file."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise CheckpointInvalid(f"{path.name} is larger than {MAX_CONFIG_BYTES} bytes")
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelNotFound(f"{path.name} is missing") from None
    except OSError as error:
        raise ModelNotFound(f"{path.name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointInvalid(f"{path.name} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointInvalid(f"{path.name} must hold a JSON object")
    return Fields(values, path.name)
