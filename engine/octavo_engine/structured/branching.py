"""How a constraint is copied, so that it can be asked about tokens that may never come."""

from __future__ import annotations

from copy import copy
from typing import TypeVar

Made = TypeVar("Made")


def copied_with(original: Made, **changes: object) -> Made:
    """A copy in which some attributes are others: those that the original goes on changing."""
    made = copy(original)
    for name, value in changes.items():
        setattr(made, name, value)
    return made
