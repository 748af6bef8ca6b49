"""The report as one HTML page with pictures: no script, no font, nothing from elsewhere. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence

from octavo_engine.bench.markup import as_html
from octavo_engine.bench.measurement import Measurement
from octavo_engine.bench.outcome import Outcome
from octavo_engine.bench.readings import Reading
from octavo_engine.bench.summary import Objectives, Summary
from octavo_engine.bench.svg import Point, Series, chart

STEPS = 60  # of a curve over time
STYLE = """
:root { color-scheme: light dark; --ink: #0f172a; --paper: #ffffff; --faint: #e2e8f0; --dim: #64748b;
  --one: #0f766e; --two: #c2410c; --three: #6d5bd0 }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e8f0; --paper: #0f172a; --faint: #334155; --dim: #94a3b8;
  --one: #2dd4bf; --two: #fb923c; --three: #a99bff } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 1120px; padding: 0 1rem }
h1 { font-size: 1.35rem; margin: 0 0 .5rem } p, li, h1, td { overflow-wrap: anywhere }
.table { overflow-x: auto; margin: 1rem 0 } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .75rem .2rem 0; border-bottom: 1px solid var(--faint); text-align: left; vertical-align: top }
th { font-weight: 500; color: var(--dim) } .figure { text-align: right; white-space: nowrap }
ul { padding-left: 1.1rem }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: 1.25rem }
svg { width: 100%; height: auto } svg text { font: 10px system-ui, sans-serif; fill: var(--dim) }
svg .title { font-size: 12px; font-weight: 600; fill: var(--ink) } svg .end { text-anchor: end }
svg .middle { text-anchor: middle } svg .grid { stroke: var(--faint); stroke-width: .7 }
figure.none { margin: 0; color: var(--dim) } figcaption { font-weight: 600; color: var(--ink) }
@media (max-width: 560px) { th, td { font-size: 13px; padding-right: .45rem } svg text { font-size: 13px }
  svg .title { font-size: 14px } }
"""


def page(measurement: Measurement, summary: Summary, text: str, objectives: Objectives) -> str:
    """The whole page; `text` is the report in Markdown."""
    return whole_page(f"{measurement.model} at {measurement.url}", text, pictures(measurement, summary, objectives))


def whole_page(name: str, text: str, pictures: Iterable[str]) -> str:
    """A page of Markdown, whose heading is replaced by the name, and of charts below it."""
    title, body, charts = html.escape(name), as_html(text.partition("\n\n")[2]), "\n".join(pictures)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}\n"
        f'<div class="charts">\n{charts}\n</div></body></html>\n'
    )


def pictures(measurement: Measurement, summary: Summary, objectives: Objectives) -> Iterator[str]:
    """Distributions first, then what happened over time."""
    whole = [outcome for outcome in measurement.outcomes if outcome.whole]
    firsts = [1e3 * item.first_token for item in whole if item.first_token is not None]
    gaps = [1e3 * gap for item in whole for gap in item.gaps]
    totals = [1e3 * item.end_to_end for item in whole if item.end_to_end is not None]
    yield distribution("Time to first token", {"measured": firsts}, objectives.ttft)
    yield distribution("Inter-token latency", {"measured": gaps}, None)  # its objective is one of averages
    yield distribution("End to end", {"measured": totals}, objectives.e2e)
    over_time = [(item.sent, 1e3 * item.first_token) for item in whole if item.first_token is not None]
    yield chart("Time to first token, as sent", "s", "ms", [Series("", sorted(over_time), "marks")])
    yield chart("Output", "s", "tokens/s", [Series("", tokens_over_time(whole, summary.seconds), "steps")])
    yield chart("Requests in flight", "s", "requests", [Series("", in_flight(measurement.outcomes), "steps")])
    if measurement.readings:
        yield from _server(measurement.readings)


def distribution(name: str, measured: Mapping[str, Sequence[float]], limit: float | None = None) -> str:
    """Of each measurement the share of its values, in milliseconds, up to each; and the objective, in seconds."""
    series = [Series(each, _shares(values), "steps") for each, values in measured.items()]
    if limit and any(each.points for each in series):
        series.append(Series("objective", [(1e3 * limit, 0.0), (1e3 * limit, 100.0)]))
    return chart(name, "ms", "% of all, up to", series, log_x=True, headroom=1.0)


def _shares(values: Sequence[float]) -> list[Point]:
    return [(value, 100 * (number + 1) / len(values)) for number, value in enumerate(sorted(values))]


def tokens_over_time(whole: Sequence[Outcome], seconds: float) -> list[Point]:
    """Chunks with text in each of so many parts of the time, as tokens a second: a request's tokens are spread evenly
    over its chunks."""
    width = max(seconds, 1e-9) / STEPS
    found = [0.0] * STEPS
    for item in whole:
        if item.first_token is None:
            continue
        at, each = item.sent + item.first_token, item.output_tokens / (len(item.gaps) + 1)
        for gap in (0.0, *item.gaps):
            at += gap
            found[min(STEPS - 1, max(0, int(at / width)))] += each
    return [(number * width, tokens / width) for number, tokens in enumerate(found)]


def in_flight(outcomes: Sequence[Outcome]) -> list[Point]:
    """How many were under way, at each moment that it changed; what failed at once counts as nothing."""
    changes = sorted([(item.sent, 1) for item in outcomes] + [(item.ended, -1) for item in outcomes])
    count, points = 0, []
    for at, change in changes:
        count += change
        points.append((at, float(max(0, count))))
    return points


def _server(readings: Sequence[Reading]) -> Iterator[str]:
    running = [(reading.at, reading.running) for reading in readings if reading.running is not None]
    waiting = [(reading.at, reading.waiting) for reading in readings if reading.waiting is not None]
    used = [(reading.at, 100 * reading.kv_usage) for reading in readings if reading.kv_usage is not None]
    yield chart("Of the server: requests", "s", "requests",
                [Series("running", running, "steps"), Series("waiting", waiting, "steps")])  # fmt: skip
    yield chart("Of the server: KV blocks held", "s", "%", [Series("", used, "steps")])
