"""PromQL over the engine's and the operator's metrics, limited to what is chosen above the board.

`$namespace`, `$service` and `$pod` are the board's variables: one service on some boards, any number on others.
"""

from __future__ import annotations

from dataclasses import dataclass

SERVICE = 'namespace="$namespace",inferenceservice="$service"'
PODS = SERVICE + ',pod=~"$pod"'
SERVICES = 'namespace=~"$namespace",inferenceservice=~"$service"'
PERCENTILES = {"P50": "0.5", "P90": "0.9", "P99": "0.99"}


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and how each of its series is named, e.g. `{{pod}}`."""

    expr: str
    legend: str


def series(metric: str, matchers: str = "") -> str:
    """The selector of an engine's metric; `matchers` narrows it further, e.g. `result="hit"`."""
    return _selector(metric, PODS, matchers)


def operator_series(metric: str, matchers: str = "") -> str:
    """The selector of what the operator says of the service. Its own pod is no concern of the board's reader."""
    return _selector(metric, SERVICE, matchers)


def services_series(metric: str, matchers: str = "") -> str:
    """The selector of what is known of all chosen services: recorded series, the engines' or the operator's."""
    return _selector(metric, SERVICES, matchers)


def _selector(metric: str, chosen: str, matchers: str) -> str:
    return f"{metric}{{{chosen},{matchers}}}" if matchers else f"{metric}{{{chosen}}}"


def rate(metric: str, matchers: str = "") -> str:
    """The increase of a counter per second, over the window that Grafana finds fit."""
    return rate_of(series(metric, matchers))


def rate_of(selector: str) -> str:
    """The same of any selector."""
    return f"rate({selector}[$__rate_interval])"


def total(expr: str, *by: str) -> str:
    """The sum, one for each combination of the labels `by`."""
    return f"sum by ({', '.join(by)}) ({expr})" if by else f"sum({expr})"


def highest(expr: str, *by: str) -> str:
    """The maximum, one for each combination of the labels `by`."""
    return f"max by ({', '.join(by)}) ({expr})" if by else f"max({expr})"


def ratio(part: str, whole: str) -> str:
    """`part` of `whole`; no point is drawn while `whole` is zero."""
    return f"{part} / ({whole} > 0)"


def quantile(share: str, histogram: str, *by: str) -> str:
    """A quantile of a histogram, estimated within a bucket."""
    return f"histogram_quantile({share}, {total(rate(f'{histogram}_bucket'), 'le', *by)})"


def percentiles(histogram: str, *by: str) -> tuple[Query, ...]:
    """P50, P90 and P99; with labels, one of each for every value."""
    names = "".join(f" {{{{{label}}}}}" for label in by)
    return tuple(Query(quantile(share, histogram, *by), name + names) for name, share in PERCENTILES.items())


def chosen_percentile_by_pod(histogram: str) -> Query:
    """The percentile that the reader chose, for each pod."""
    return Query(quantile("$percentile", histogram, "pod"), "{{pod}}")


def happened(counter: str, window: str = "1m") -> str:
    """Events that a counter counted within `window`, those before its first scrape included, which `increase` does not
    see."""
    return f"(({counter} > 0) unless {counter} offset {window}) or increase({counter}[{window}]) > 0"


def or_none(expr: str, label: str) -> str:
    """With a line at zero beside it that is named `none`: without a single case there would be nothing to draw."""
    return f'{expr} or label_replace(vector(0), "{label}", "none", "", "")'
