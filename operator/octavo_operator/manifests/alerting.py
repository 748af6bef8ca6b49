"""An alert as a value, which series it speaks of, and the PromQL that several share. Pure.

Alerts rest on the exported series alone, never on recorded ones: a service's rules work wherever they are loaded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from octavo_operator import names
from octavo_operator.manifests.child import Manifest

BY_SERVICE = "namespace, inferenceservice"
BY_POD = f"{BY_SERVICE}, pod"
RUNBOOKS = "docs/runbooks"
"""Where the repository has a page for each alert, by the alert's name."""


class Severity(StrEnum):
    """Who is told: a person at once, or whoever looks next."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True)
class Alert:
    """One alerting rule.

    Attributes:
        expr: PromQL; each series that it returns is an alert of its own.
        minutes: it must hold for this long.
        summary: one line; Prometheus fills in `{{ $labels.NAME }}` and `{{ $value }}`.
        description: what it means for users, in a sentence or two.
    """

    name: str
    expr: str
    minutes: int
    severity: Severity
    summary: str
    description: str

    def rendered(self) -> Manifest:
        """As Prometheus reads it."""
        told = {
            "summary": self.summary,
            "description": self.description,
            "runbook": f"{RUNBOOKS}/{self.name}.md",
        }
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": f"{self.minutes}m",
            "labels": {"severity": self.severity.value},
            "annotations": told,
        }


@dataclass(frozen=True)
class Scope:
    """Which series rules speak of: those of one service, or, without matchers, of all."""

    matchers: str = ""

    @classmethod
    def service(cls, namespace: str, parent: str) -> Scope:
        """One service's; its name as its pods' label has it."""
        return cls(f'namespace="{namespace}",inferenceservice="{names.child_name(parent)}"')

    def of(self, metric: str, matchers: str = "") -> str:
        """The selector of a metric; `matchers` narrows it further."""
        inside = ",".join(filter(None, (self.matchers, matchers)))
        return f"{metric}{{{inside}}}" if inside else metric

    def total(self, metric: str, matchers: str = "", by: str = BY_SERVICE) -> str:
        """The sum of a gauge."""
        return f"sum by ({by}) ({self.of(metric, matchers)})"

    def highest(self, metric: str, matchers: str = "", by: str = BY_SERVICE) -> str:
        """The maximum of a gauge: of what two operators say during a change of the acting one, the larger."""
        return f"max by ({by}) ({self.of(metric, matchers)})"

    def rate(self, metric: str, window: str, matchers: str = "", by: str = BY_SERVICE) -> str:
        """The increase of a counter per second."""
        return f"sum by ({by}) (rate({self.of(metric, matchers)}[{window}]))"

    def increase(self, metric: str, window: str, matchers: str = "", by: str = BY_SERVICE) -> str:
        """The increase of a counter."""
        return f"sum by ({by}) (increase({self.of(metric, matchers)}[{window}]))"

    def late_share(self, histogram: str, seconds: float, window: str) -> str:
        """The share of observations above `seconds`, which must be a bound of the histogram; NaN without any."""
        in_time = self.rate(f"{histogram}_bucket", window, f'le=~"{spellings(seconds)}"')
        return f"1 - {in_time} / {self.rate(f'{histogram}_count', window)}"


def bound_of(seconds: float, bounds: Sequence[float]) -> float:
    """The smallest bound of a histogram that is not below `seconds`, or its largest: only there it can be counted."""
    return bounds[min(bisect_left(bounds, seconds), len(bounds) - 1)]


def spellings(bound: float) -> str:
    """A bound as the label `le` may have it, for a regular expression: `2` and `2.0` differ by Prometheus' version."""
    return "|".join(dict.fromkeys((f"{bound:g}", str(float(bound))))).replace(".", "[.]")
