"""Counters and histograms that cost a fraction of a microsecond to update, handed to prometheus_client at scrape.

The client library's own take a lock for every update, and recording one token needs three. Here an instrument is
written by one thread and read by any: a scrape may be a step behind, never wrong by more. Label values are fixed when
an instrument is made, so no call site can invent a series and `rate()` starts from zero. Knows nothing of requests.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

Label = TypeVar("Label", bound=str)
T = TypeVar("T")
Series = Set[tuple[str, T]]  # the items of a dictionary by label value


class Counter:
    """A number that only grows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1) -> None:
        """Count `amount` more."""
        self.value += amount


class Histogram:
    """Observations counted by bucket; `bounds` are inclusive upper limits in rising order, the last bucket is open."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by the bucket's `le` label, as Prometheus wants them."""
        limits = [*(str(float(bound)) for bound in self.bounds), "+Inf"]
        return [(limit, float(count)) for limit, count in zip(limits, accumulate(self.counts.copy()), strict=True)]


class Instruments(Collector):
    """Makes instruments whose series all carry the labels `common`, and exports them through `registry`."""

    def __init__(self, registry: CollectorRegistry, **common: str) -> None:
        self._names, self._values = tuple(common), tuple(common.values())
        self._exports: list[Callable[[], Iterable[Metric]]] = []
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """One Metric for each family, in the order they were made; called at scrape."""
        for export in self._exports:
            yield from export()

    def counter(self, name: str, help: str) -> Counter:
        """A counter without labels of its own. `name` ends in `_total`."""
        counter = Counter()
        self._exports.append(partial(self._counter_family, name, help, (), {"": counter}.items()))
        return counter

    def counters(self, name: str, help: str, label: str, values: Iterable[Label]) -> Mapping[Label, Counter]:
        """One counter for each value of `label`."""
        counters = {value: Counter() for value in values}
        self._exports.append(partial(self._counter_family, name, help, (label,), counters.items()))
        return counters

    def histogram(self, name: str, help: str, bounds: Sequence[float]) -> Histogram:
        """A histogram without labels of its own."""
        histogram = Histogram(bounds)
        self._exports.append(partial(self._histogram_family, name, help, (), {"": histogram}.items()))
        return histogram

    def histograms(
        self, name: str, help: str, bounds: Sequence[float], label: str, values: Iterable[Label]
    ) -> Mapping[Label, Histogram]:
        """One histogram for each value of `label`."""
        histograms = {value: Histogram(bounds) for value in values}
        self._exports.append(partial(self._histogram_family, name, help, (label,), histograms.items()))
        return histograms

    def gauges(self, name: str, help: str, label: str) -> dict[str, float]:
        """A dictionary from values of `label` to numbers: what it holds at scrape is exported."""
        values: dict[str, float] = {}
        self._exports.append(lambda: [self.gauge_family(name, help, values.copy(), label)])
        return values

    def info(self, name: str, help: str) -> dict[str, str]:
        """A dictionary of labels, exported as one series `{name}_info` with the value 1 once it holds any."""
        labels: dict[str, str] = {}
        self._exports.append(lambda: [self._info_family(name, help, labels.copy())] if labels else [])
        return labels

    def live(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Export what `read` returns, called at each scrape."""
        self._exports.append(read)

    def gauge_family(self, name: str, help: str, value: float | Mapping[Label, float], label: str = "") -> Metric:
        """The present value of a gauge: one number, or one for each value of `label`."""
        family = GaugeMetricFamily(name, help, labels=(*self._names, label) if label else self._names)
        if isinstance(value, Mapping):
            for key, number in value.items():
                family.add_metric((*self._values, str(key)), number)
        else:
            family.add_metric(self._values, value)
        return family

    def grid_family(
        self, name: str, help: str, values: Mapping[tuple[str, str], float], labels: tuple[str, str]
    ) -> Metric:
        """The present values of a gauge with two labels."""
        family = GaugeMetricFamily(name, help, labels=(*self._names, *labels))
        for key, number in values.items():
            family.add_metric((*self._values, *key), number)
        return family

    def _counter_family(self, name: str, help: str, labels: tuple[str, ...], counters: Series[Counter]) -> list[Metric]:
        family = CounterMetricFamily(name, help, labels=(*self._names, *labels))
        for value, counter in counters:
            family.add_metric((*self._values, str(value))[: len(self._names) + len(labels)], counter.value)
        return [family]

    def _histogram_family(
        self, name: str, help: str, labels: tuple[str, ...], histograms: Series[Histogram]
    ) -> list[Metric]:
        family = HistogramMetricFamily(name, help, labels=(*self._names, *labels))
        for value, histogram in histograms:
            key = (*self._values, str(value))[: len(self._names) + len(labels)]
            family.add_metric(key, buckets=histogram.buckets(), sum_value=histogram.total)
        return [family]

    def _info_family(self, name: str, help: str, labels: Mapping[str, str]) -> Metric:
        family = InfoMetricFamily(name, help, labels=self._names)
        family.add_metric(self._values, dict(labels))
        return family
