"""What counts as drift: the fields of a manifest that the live object does not have. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo_operator.quantities import amount


def drift(wanted: Any, live: Any, path: str = "") -> str | None:
    """The first field of `wanted` that `live` does not have, as a dotted path; None when it has all.

    What others add is theirs and no drift. Lists of named items are compared by name, others item by item.
    """
    if live is None and wanted in ("", {}, []):
        return None  # the API server leaves empty values out
    if isinstance(wanted, dict):
        if not isinstance(live, Mapping):
            return path
        for key, value in wanted.items():
            if found := drift(value, live.get(key), f"{path}.{key}".lstrip(".")):
                return found
        return None
    if isinstance(wanted, list):
        return _list_drift(wanted, live, path)
    return None if wanted == live or _same_quantity(wanted, live) else path


def _list_drift(wanted: list[Any], live: Any, path: str) -> str | None:
    if not isinstance(live, list):
        return path
    merge_key = _merge_key(wanted)
    if merge_key:
        by_key = {item.get(merge_key): item for item in live if isinstance(item, Mapping)}
        pairs = [(item, by_key.get(item[merge_key]), f"{path}[{item[merge_key]}]") for item in wanted]
    elif len(live) != len(wanted):
        return path
    else:
        pairs = [
            (item, other, f"{path}[{index}]") for index, (item, other) in enumerate(zip(wanted, live, strict=True))
        ]
    return next((found for item, other, where in pairs if (found := drift(item, other, where))), None)


def _merge_key(items: list[Any]) -> str | None:
    """The key by which the API server merges a list, of those that occur in our manifests."""
    for key in ("uid", "mountPath", "name"):
        if items and all(isinstance(item, dict) and key in item for item in items):
            return key
    return None


def _same_quantity(wanted: Any, live: Any) -> bool:
    """The API server rewrites quantities ("1000m" becomes "1"); equal amounts are no drift."""
    if not (isinstance(wanted, str) and isinstance(live, str)):
        return False
    first, second = amount(wanted), amount(live)
    return first is not None and first == second
