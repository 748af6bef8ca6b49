"""The value that all readers of trouble return."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from octavo_operator.words import plain

Object = dict[str, Any]
MAX_MESSAGE = 1200


@dataclass(frozen=True)
class Cause:
    """Why something is not as it should be.

    Attributes:
        reason: one CamelCase word.
        message: what to do, then the cluster's own words.
        final: waiting does not help, a person must change something.
    """

    reason: str
    message: str
    final: bool


def conditions_of(live: Object) -> dict[str, Object]:
    """An object's conditions by type."""
    return {item["type"]: item for item in live.get("status", {}).get("conditions") or ()}


def cleaned(cause: Cause | None) -> Cause | None:
    """With a message fit for whoever reads status: it goes into objects that more people may read than Secrets."""
    return replace(cause, message=plain(cause.message, MAX_MESSAGE)) if cause else None


def advice(table: tuple[tuple[str, str], ...], words: str) -> list[str]:
    """The advice of every row whose key occurs in the cluster's words, in the table's order."""
    lower = words.lower()
    return [remedy for key, remedy in table if key.lower() in lower]
