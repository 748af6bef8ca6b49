"""A count that never changes: what a load needs, measured rather than estimated."""

from __future__ import annotations

from .view import Choice, View


class Fixed:
    """So many replicas from the start."""

    name = "fixed"
    period = 60.0

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def choose(self, view: View, now: float) -> Choice:  # noqa: ARG002 (the protocol's signature)
        """Always the same."""
        return Choice(self._replicas)
