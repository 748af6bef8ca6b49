"""Whose an object is. Pure."""

from __future__ import annotations

from enum import Enum
from typing import Any

from octavo_operator import names


class Ownership(Enum):
    """Whose an object of a child's name is."""

    ABSENT = "absent"
    OURS = "ours"
    LEFTOVER = "leftover"  # of a deleted service of the same name: the garbage collector will take it
    FOREIGN = "foreign"


def ownership(live: dict[str, Any] | None, parent: dict[str, Any]) -> Ownership:
    """Whose `live` is, by its controller reference alone: labels and names prove nothing."""
    if live is None:
        return Ownership.ABSENT
    for owner in live["metadata"].get("ownerReferences", ()):
        if (
            owner.get("controller")
            and owner["kind"] == names.KIND
            and owner["apiVersion"].startswith(f"{names.GROUP}/")
        ):
            if owner["uid"] == parent["metadata"]["uid"]:
                return Ownership.OURS
            return Ownership.LEFTOVER if owner["name"] == parent["metadata"]["name"] else Ownership.FOREIGN
    return Ownership.FOREIGN
