"""What it costs to record: metrics, timelines and the log of decisions, in processor time of the stepping thread; and
the access log and traces, in that of the event loop, with what their threads do later.

    python benchmarks/recording_cost.py [--json FILE]

The least of several rounds, less the empty loop's: on a busy machine that is what repeats.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry
from starlette.datastructures import Headers

from octavo_engine.batch import Batch, SchedulerStats, Slice
from octavo_engine.history.decisions import DecisionLog
from octavo_engine.history.recent import History
from octavo_engine.metrics import Metrics
from octavo_engine.request import EventKind, FinishReason, Request, SamplingParams, Status, WaitReason
from octavo_engine.server.access_log import JsonAccessLog, facts, written_line
from octavo_engine.server.exchange import Exchange
from octavo_engine.server.reporting import Reporting
from octavo_engine.server.traces import Traces

ROUNDS, TIMES, STREAMS = 15, 2_000, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    file = parser.parse_args().json
    figures = {name: round(value, 3) for name, value in measured()}
    for name, value in figures.items():
        print(f"{name:<58} {value:>8.2f} us")
    if file is not None:
        file.write_text(json.dumps(figures, indent=2) + "\n")


def measured() -> Iterator[tuple[str, float]]:
    """Names and microseconds."""
    plain, logged = reporting(), reporting(DecisionLog(_Nowhere(), waiting=1_000_000))
    made = _request()
    yield "a token", per_call(lambda: plain.token(made, 1.0))
    decodes = Batch(slices=tuple(Slice(_decoding(), 100, 1, samples=True) for _ in range(STREAMS)), at=1.0)
    yield f"a decode step, for each of {STREAMS} requests", per_call(lambda: plain.step(decodes, 0.01), 100) / STREAMS
    yield "    with --log-decisions", per_call(lambda: logged.step(decodes, 0.01), 100) / STREAMS
    yield "a request: its lines, admission and end", per_call(lambda: _life(plain))
    yield "    with --log-decisions, its two lines", per_call(lambda: _life(logged))
    yield from _of_exchanges()


def _of_exchanges() -> Iterator[tuple[str, float]]:
    """What the event loop does at the end of an HTTP request, and the threads that write and send."""
    ended = _exchange()
    access = JsonAccessLog(_Nowhere(), model="m", waiting=1_000_000)
    yield "an HTTP request's line in the access log", per_call(lambda: access(ended))
    line = 0.0, facts(ended, "m")
    yield "    written, by its thread", per_call(lambda: written_line(line))
    traces = Traces(_Sink(), "m")
    yield "an HTTP request's trace, with its stretches", per_call(lambda: traces(ended), 200)
    traces.close()


def _exchange() -> Exchange:
    """One that is over, and had one choice."""
    request, headers = _request(), Headers({"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
    _live(reporting(), request)
    made = Exchange(
        method="POST", path="/v1/chat/completions", client="10.0.0.1", headers=headers, x_request_id="a" * 32, began=0.0
    )
    made.requests, made.status, made.ended = [request], 200, 0.8
    return made


class _Sink(SpanExporter):
    """A collector that is there and keeps nothing."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002 (the library's)
        return SpanExportResult.SUCCESS


def reporting(decisions: DecisionLog | None = None) -> Reporting:
    """What the engine reports to, as `octavo serve` builds it."""
    made = Reporting(Metrics(CollectorRegistry(), model_name="m", stats=SchedulerStats), History(), decisions)
    made.counting = True
    return made


def per_call(call: Callable[[], object], times: int = TIMES) -> float:
    """Microseconds of one call."""
    return 1e6 * (least(call, times) - least(lambda: None, times)) / times


def least(call: Callable[[], object], times: int) -> float:
    """Processor seconds of `times` calls, the least of all rounds."""
    rounds = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(times):
            call()
        rounds.append(time.thread_time() - began)
    return min(rounds)


def _request() -> Request:
    return Request(id="chatcmpl-0-0", tokens=[1] * 100, params=SamplingParams(), arrival=0.0)


def _decoding() -> Request:
    made = _request()
    made.tokens.append(1)
    made.num_computed = 100
    return made


def _life(to: Reporting) -> None:
    """What the engine notes and reports of one request that waited, was computed in one step, and ended."""
    _live(to, _request())


def _live(to: Reporting, made: Request) -> None:
    made.note(0.1, EventKind.SUBMITTED)
    made.note(0.2, EventKind.QUEUED)
    made.note(0.5, EventKind.ADMITTED, tokens=16)
    made.status, made.num_computed, made.num_cached = Status.RUNNING, 16, 16
    blocked = WaitReason.KV_FULL
    to.step(Batch(slices=(Slice(made, 16, 84, samples=True),), admitted=(made,), at=0.5, blocked=blocked), 0.1)
    made.note(0.6, EventKind.FIRST_TOKEN)
    made.note(0.7, EventKind.FINISHED, FinishReason.STOP)
    made.status, made.finish_reason = Status.FINISHED, FinishReason.STOP
    to.finished(made, 0.7)


class _Nowhere:
    """An output that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None: ...


if __name__ == "__main__":
    main()
