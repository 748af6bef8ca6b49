"""A measurement for a person, in Markdown, which a terminal shows as well. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo_engine.bench.measurement import Measurement
from octavo_engine.bench.outcome import Failure
from octavo_engine.bench.quantiles import Spread
from octavo_engine.bench.readings import Reading
from octavo_engine.bench.summary import Summary

LATE_SECONDS = 0.01  # that requests of an open loop were sent after they were due, at P99: worth a word


def report(measurement: Measurement, summary: Summary) -> str:
    """The whole page."""
    parts = [
        f"# {measurement.model} at {measurement.url}",
        _what(measurement, summary),
        table(("", "a second"), rates(summary)),
        table(("milliseconds", "P50", "P90", "P99", "max", "mean"), latencies(summary)),
        *_goodput(summary),
        *_server(measurement.readings),
        *_notes(measurement, summary),
    ]
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[int] = (0,)) -> str:
    """A table with its columns aligned: those in `texts` to the left, figures to the right."""
    lines = [[cell.replace("|", r"\|") for cell in line] for line in (head, *rows)]
    widths = [max(2, *map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * width if number in texts else "-" * (width - 1) + ":" for number, width in enumerate(widths)]
    lines.insert(1, rule)
    return "\n".join(f"| {' | '.join(_aligned(line, widths, texts))} |" for line in lines)


def _aligned(line: Sequence[str], widths: Sequence[int], texts: Sequence[int]) -> Iterator[str]:
    for number, (cell, width) in enumerate(zip(line, widths, strict=True)):
        yield cell.ljust(width) if number in texts else cell.rjust(width)


def rates(summary: Summary) -> list[tuple[str, str]]:
    """What came in a second."""
    return [
        ("requests", f"{summary.requests_per_second:.2f}"),
        ("output tokens", f"{summary.output_tokens_per_second:,.1f}"),
        ("prompt tokens", f"{summary.prompt_tokens_per_second:,.1f}"),
    ]


def latencies(summary: Summary) -> list[tuple[str, ...]]:
    """The distributions, in milliseconds."""
    rows = (
        ("time to first token", summary.ttft),
        ("inter-token latency", summary.itl),
        ("time per output token", summary.tpot),
        ("end to end", summary.e2e),
    )
    return [(name, *_milliseconds(spread)) for name, spread in rows]


def _milliseconds(spread: Spread | None) -> tuple[str, ...]:
    if spread is None:
        return ("–",) * 5
    return tuple(
        f"{1e3 * value:,.1f}" if value < 10 else f"{1e3 * value:,.0f}"
        for value in (spread.p50, spread.p90, spread.p99, spread.max, spread.mean)
    )


def _what(measurement: Measurement, summary: Summary) -> str:
    """One paragraph: the load, and how much of it was answered."""
    load = ", ".join(
        f"{name.replace('_', ' ')} {value}" for name, value in measurement.load.items() if name != "arrivals"
    )
    lengths = [
        f"{spread.p50:,.0f} {kind} tokens ({spread.p99:,.0f} at P99)"
        for kind, spread in (("prompt", summary.prompt_tokens), ("output", summary.output_tokens))
        if spread is not None
    ]
    stopped = " (stopped)" if measurement.stopped else ""
    return (
        f"{measurement.began}, {measurement.load['arrivals']}; {load or 'the default load'}.\n"
        f"{summary.whole:,} of {summary.sent:,} requests were answered in {summary.seconds:,.1f} s{stopped}"
        + (f", with {' and '.join(lengths)} each." if lengths else ".")
    )


def _goodput(summary: Summary) -> Iterator[str]:
    if summary.good_per_second is not None and summary.good_share is not None:
        share = f"{100 * summary.good_share:.1f} % of the requests kept the objectives"
        yield f"**Goodput: {summary.good_per_second:.2f} requests a second**; {share}."


def _server(readings: Sequence[Reading]) -> Iterator[str]:
    """What the server said of itself."""
    if not readings:
        return
    rows = []
    for name, values, form in (
        ("running", [reading.running for reading in readings], "{:,.0f}"),
        ("waiting", [reading.waiting for reading in readings], "{:,.0f}"),
        ("KV blocks held, %", [_percent(reading.kv_usage) for reading in readings], "{:.1f}"),
    ):
        spread = Spread.of(value for value in values if value is not None)
        if spread is not None:
            rows.append((name, *(form.format(value) for value in (spread.p50, spread.p99, spread.max))))
    if rows:
        yield table((f"of the server, {len(readings)} looks", "P50", "P99", "max"), rows)
    told = [reading.preemptions for reading in readings if reading.preemptions is not None]
    if told and told[-1] > told[0]:
        yield f"{told[-1] - told[0]:,.0f} requests were preempted: KV blocks ran out."


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _notes(measurement: Measurement, summary: Summary) -> Iterator[str]:
    """What went wrong, and how far the figures can be trusted."""
    if summary.failures:
        rows = [(f"{kind}", f"{count:,}", summary.examples.get(kind, "")) for kind, count in summary.failures.items()]
        yield table(("failed", "requests", "the first one said"), rows, texts=(0, 2))
    notes = [*_trust(measurement, summary)]
    if notes:
        yield "\n".join(f"- {note}" for note in notes)


def _trust(measurement: Measurement, summary: Summary) -> Iterator[str]:
    cost = measurement.cost
    yield (
        f"The client used {100 * cost.cpu:.0f} % of a processor; its loop was {1e3 * cost.lag_p99:.1f} ms late at P99,"
        f" {1e3 * cost.lag_max:.1f} ms at most."
    )
    if cost.doubt:
        yield f"**In doubt:** {cost.doubt}."
    if summary.late is not None and summary.late.p99 > LATE_SECONDS:
        yield f"**In doubt:** requests were sent {1e3 * summary.late.p99:.1f} ms after they were due (P99)."
    if "ignore_eos" in summary.examples.get(Failure.REJECTED, ""):
        yield "The server refuses ignore_eos: ask with --no-ignore-eos; answers may then be shorter than asked for."
    if summary.interrupted:
        yield f"Under way when it was stopped: {summary.interrupted:,} requests. They count nowhere."
    if summary.cached_share is not None:
        yield f"{100 * summary.cached_share:.1f} % of the prompt tokens were found in the server's prefix cache."
    if summary.exact_prompts is not None and summary.exact_prompts < 1:
        who = "" if measurement.exact else ": the server has no /tokenize, so words were counted; --tokenizer names one"
        yield f"{100 * summary.exact_prompts:.0f} % of the prompts were exactly as long as asked for{who}."
    if summary.whole and summary.prompt_tokens is None:
        yield "The server does not count tokens (no usage in its streams): each chunk with text counts as one."
