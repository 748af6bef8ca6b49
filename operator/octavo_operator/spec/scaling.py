"""How many replicas there are."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from octavo_operator.spec.base import Part

MAX_REPLICAS = 64


class Autoscaling(Part):
    """How the number of replicas follows the load."""

    mode: Literal["Operator", "External"] | None = Field(
        default=None,
        description="Operator (default): Octavo scales on queue depth. External: an autoscaler writes spec.replicas "
        "through /scale.",
    )
    min_replicas: int | None = Field(default=None, ge=1, le=MAX_REPLICAS, description="Fewest replicas. Default: 1.")
    max_replicas: int | None = Field(
        default=None, ge=1, le=MAX_REPLICAS, description="Most replicas; required in mode Operator."
    )
    target_queue_depth: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Waiting requests a replica may hold before another is started. Default: 4.",
    )
    objective_seconds: int | None = Field(
        default=None, ge=1, le=3600, description="A waiting request should start within this many seconds. Default: 30."
    )

    @property
    def by_operator(self) -> bool:
        """Whether Octavo scales."""
        return self.mode != "External"
