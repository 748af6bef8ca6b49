"""Two measurements on one page: the table of what differs, and both in each picture. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from octavo_engine.bench.document import Saved
from octavo_engine.bench.outcome import Outcome
from octavo_engine.bench.page import distribution, whole_page
from octavo_engine.bench.svg import Series, chart


def compared_page(before: Saved, after: Saved, text: str) -> str:
    """The whole page; `text` is the comparison in Markdown."""
    return whole_page(f"{before.name} → {after.name}", text, _pictures(before, after))


def _pictures(before: Saved, after: Saved) -> Iterator[str]:
    for name, values in (("Time to first token", _firsts), ("Inter-token latency", _gaps), ("End to end", _totals)):
        yield distribution(name, _of_both(before, after, values))
    both = [Series(name, _as_sent(each), "marks") for name, each in _named(before, after)]
    yield chart("Time to first token, as sent", "s", "ms", both)


def _of_both(
    before: Saved, after: Saved, values: Callable[[Sequence[Outcome]], list[float]]
) -> dict[str, Sequence[float]]:
    return {name: values(_whole(each)) for name, each in _named(before, after)}


def _named(before: Saved, after: Saved) -> list[tuple[str, Saved]]:
    """As charts call them: by what they are, since names of files may be the same, or too long."""
    return [("before", before), ("after", after)]


def _whole(saved: Saved) -> list[Outcome]:
    return [outcome for outcome in saved.outcomes if outcome.whole]


def _firsts(whole: Sequence[Outcome]) -> list[float]:
    return [1e3 * item.first_token for item in whole if item.first_token is not None]


def _gaps(whole: Sequence[Outcome]) -> list[float]:
    return [1e3 * gap for item in whole for gap in item.gaps]


def _totals(whole: Sequence[Outcome]) -> list[float]:
    return [1e3 * item.end_to_end for item in whole if item.end_to_end is not None]


def _as_sent(saved: Saved) -> list[tuple[float, float]]:
    return sorted((item.sent, 1e3 * item.first_token) for item in _whole(saved) if item.first_token is not None)
