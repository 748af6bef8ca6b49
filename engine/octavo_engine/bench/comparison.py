"""Two measurements of one load: what differs, and whether that is more than noise. Pure.

The noise is that within each measurement, by a bootstrap of blocks: a measurement is cut into parts that follow each
other in time, parts are drawn with replacement, and the figures taken again. Blocks, since requests that ran side by
side share what disturbed them (Künsch 1989); whole requests, since the gaps of one answer are no independent draws. A
difference is called real where 99 of 100 such pairs agree on its direction: with a dozen figures, 95 of 100 would
often err. What differs from one start of a server to the next is not in a single measurement: for that, measure several
times, in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from octavo_engine.bench.document import Saved
from octavo_engine.bench.outcome import Outcome

BLOCKS = 20  # parts of a measurement
FEWEST = 10  # whole requests, below which nothing is said of noise
DRAWS = 500
THINNED = 40_000  # values that are drawn from: a quantile of more is no better known, and takes long
OUTSIDE = 0.5  # percent of the draws on each side of the interval
SHARES = {"P50": 0.5, "P90": 0.9, "P99": 0.99}
DERIVED = "arrivals"  # of other settings, which are told themselves
Values = NDArray[np.float64]


class Verdict(StrEnum):
    """What a difference is."""

    BETTER = "better"
    WORSE = "worse"
    NOISE = "within the noise"
    TOO_FEW = "too few requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One figure of both; `change` and its interval are shares of the first: 0.1 is a tenth more."""

    name: str
    unit: str
    before: float
    after: float
    change: float
    low: float
    high: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class _Kind:
    """Figures of one kind: what values each block has, and the numbers that are told of all that were drawn."""

    names: tuple[str, ...]
    unit: str
    more_is_better: bool
    blocks: Callable[[Saved], list[Values]]
    numbers: Callable[[Values], Values]


def compare(before: Saved, after: Saved, seed: int = 0) -> list[Difference]:
    """All figures that both have."""
    rng = np.random.default_rng(seed)
    return [difference for kind in _kinds() for difference in _differences(kind, before, after, rng)]


def changed(before: Saved, after: Saved) -> dict[str, tuple[object, object]]:
    """The settings that differ, of the server and of the load; a fair comparison has one."""
    pairs = ((before.serve, after.serve), (before.load, after.load), ({"model": before.model}, {"model": after.model}))
    return {
        name: (first.get(name, "default"), second.get(name, "default"))
        for first, second in pairs
        for name in sorted({*first, *second} - {DERIVED})
        if first.get(name) != second.get(name)
    }


def _kinds() -> list[_Kind]:
    rates: tuple[tuple[str, Callable[[Outcome], float]], ...] = (
        ("output tokens", lambda item: item.output_tokens),
        ("requests", lambda _: 1.0),
    )
    latencies: tuple[tuple[str, Callable[[Outcome], Sequence[float]]], ...] = (
        ("time to first token", lambda item: _some(item.first_token)),
        ("inter-token latency", lambda item: item.gaps),
        ("end to end", lambda item: _some(item.end_to_end)),
    )
    return [
        *(_Kind((name,), "/s", True, _by_time(weight), _mean) for name, weight in rates),
        *(
            _Kind(tuple(f"{name}, {word}" for word in SHARES), "ms", False, _by_request(values), _quantiles)
            for name, values in latencies
        ),
    ]


def _some(value: float | None) -> Sequence[float]:
    return () if value is None else (value,)


def _mean(values: Values) -> Values:
    return np.array([values.mean()])


def _quantiles(values: Values) -> Values:
    return np.asarray(np.quantile(values, tuple(SHARES.values())), np.float64)


def _by_request(values: Callable[[Outcome], Sequence[float]]) -> Callable[[Saved], list[Values]]:
    """Blocks of requests that were sent one after another; in milliseconds."""

    def blocks(saved: Saved) -> list[Values]:
        whole = sorted(_whole(saved), key=lambda item: item.sent)
        parts = (whole[part[0] : part[-1] + 1] for part in np.array_split(np.arange(len(whole)), BLOCKS) if len(part))
        return [1e3 * np.array([value for item in part for value in values(item)], np.float64) for part in parts]

    return blocks


def _by_time(weight: Callable[[Outcome], float]) -> Callable[[Saved], list[Values]]:
    """Blocks of equal time, each with one value: what came in it, a second. An answer counts where its tokens came."""

    def blocks(saved: Saved) -> list[Values]:
        width = max(saved.seconds, 1e-9) / BLOCKS
        found = np.zeros(BLOCKS)
        for item in _whole(saved):
            arrivals = item.sent + (item.first_token or 0.0) + np.cumsum((0.0, *item.gaps))
            parts = np.clip((arrivals / width).astype(int), 0, BLOCKS - 1)
            np.add.at(found, parts, weight(item) / len(arrivals))
        return [np.array([value / width]) for value in found]

    return blocks


def _whole(saved: Saved) -> list[Outcome]:
    return [outcome for outcome in saved.outcomes if outcome.whole]


def _differences(kind: _Kind, before: Saved, after: Saved, rng: np.random.Generator) -> Iterator[Difference]:
    pair = [[block for block in kind.blocks(saved) if len(block)] for saved in (before, after)]
    if not all(pair):
        return
    enough = min(len(_whole(before)), len(_whole(after))) >= FEWEST
    told = [kind.numbers(np.concatenate(blocks)) for blocks in pair]
    drawn = [_redrawn(kind, blocks, rng) for blocks in pair]
    for index, name in enumerate(kind.names):
        first, second = (float(numbers[index]) for numbers in told)
        if first <= 0:
            continue
        low, high = _interval(drawn[0][:, index], drawn[1][:, index])
        yield Difference(
            name=name,
            unit=kind.unit,
            before=first,
            after=second,
            change=second / first - 1,
            low=low,
            high=high,
            verdict=verdict(low, high, more_is_better=kind.more_is_better) if enough else Verdict.TOO_FEW,
        )


def _redrawn(kind: _Kind, blocks: Sequence[Values], rng: np.random.Generator) -> Values:
    """The numbers of each draw of as many blocks as there are: (DRAWS, numbers)."""
    step = -(-sum(map(len, blocks)) // THINNED)
    thinned = [block[::step] for block in blocks]
    picks = rng.integers(0, len(thinned), (DRAWS, len(thinned)))
    return np.array([kind.numbers(np.concatenate([thinned[index] for index in pick])) for pick in picks])


def _interval(before: Values, after: Values) -> tuple[float, float]:
    """Where the change lies in all but `OUTSIDE` of the pairs of draws, on either side."""
    changes = np.divide(after, before, out=np.ones(DRAWS), where=before > 0) - 1
    low, high = np.percentile(changes, (OUTSIDE, 100 - OUTSIDE))
    return float(low), float(high)


def verdict(low: float, high: float, *, more_is_better: bool) -> Verdict:
    """What an interval of the change says."""
    if low <= 0 <= high:
        return Verdict.NOISE
    return Verdict.BETTER if (low > 0) == more_is_better else Verdict.WORSE
