"""What /metrics says at one moment, and what happened between two: rates and quantiles. Pure.

A quantile is estimated as Prometheus does it: evenly within its bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from octavo_engine.errors import OctavoError

Labels = frozenset[tuple[str, str]]
UNTOLD = ("model_name",)  # the same in all series


class NotAnEngine(OctavoError):
    """What answers has no metrics, or not ours."""


@dataclass(frozen=True, slots=True)
class Scrape:
    """All series at `at`, in seconds on any clock, by name and labels."""

    at: float
    series: Mapping[str, Mapping[Labels, float]]

    @classmethod
    def read(cls, text: str, at: float) -> Scrape:
        """Parse Prometheus' text format; raises NotAnEngine."""
        try:
            read = cls.of(text_string_to_metric_families(text), at)
        except ValueError as error:
            raise NotAnEngine("its /metrics cannot be read") from error
        if "octavo_requests_running" not in read.series:
            raise NotAnEngine("its /metrics are not an Octavo engine's: ask the management port, 8001")
        return read

    @classmethod
    def of(cls, families: Iterable[Metric], at: float) -> Scrape:
        """The same of families, as an engine has them of itself."""
        series: dict[str, dict[Labels, float]] = {}
        for family in families:
            for sample in family.samples:
                labels = frozenset(item for item in sample.labels.items() if item[0] not in UNTOLD)
                series.setdefault(sample.name, {})[labels] = sample.value
        return cls(at, series)

    def value(self, name: str, **labels: str) -> float:
        """One series; 0 where there is none."""
        return self.series.get(name, {}).get(frozenset(labels.items()), 0.0)

    def total(self, name: str) -> float:
        """The sum over all labels."""
        return sum(self.series.get(name, {}).values())

    def by(self, name: str, label: str) -> dict[str, float]:
        """The sums by the values of one label."""
        found: dict[str, float] = {}
        for labels, value in self.series.get(name, {}).items():
            key = dict(labels).get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found

    def labels(self, name: str) -> dict[str, str]:
        """The labels of a series that says all by them, such as `octavo_engine_info`; none where it is not there."""
        return dict(next(iter(self.series.get(name, {})), ()))


@dataclass(frozen=True, slots=True)
class Between:
    """What happened from one scrape to a later one. A counter that fell, as after a restart, counts from zero."""

    before: Scrape
    after: Scrape

    @property
    def seconds(self) -> float:
        """How far they are apart."""
        return max(self.after.at - self.before.at, 1e-9)

    def increase(self, name: str, **labels: str) -> float:
        """How much a counter grew."""
        before, after = self.before.value(name, **labels), self.after.value(name, **labels)
        return after - before if after >= before else after

    def rate(self, name: str, **labels: str) -> float:
        """The same for each second."""
        return self.increase(name, **labels) / self.seconds

    def quantile(self, name: str, share: float) -> float | None:
        """Of what a histogram without labels observed in between; None when that is nothing."""
        buckets = sorted((_bound(le), self.increase(f"{name}_bucket", le=le)) for le in self._bounds(name))
        if not buckets or not buckets[-1][1]:
            return None
        wanted, low, below = share * buckets[-1][1], 0.0, 0.0
        for high, upto in buckets:
            if upto >= wanted:
                inside = upto - below
                return (
                    low if high == float("inf") else low + (high - low) * ((wanted - below) / inside if inside else 1.0)
                )
            low, below = high, upto
        return low

    def _bounds(self, name: str) -> list[str]:
        return list(self.after.by(f"{name}_bucket", "le"))


def _bound(le: str) -> float:
    return float("inf") if le == "+Inf" else float(le)
