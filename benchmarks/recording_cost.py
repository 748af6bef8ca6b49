"""What it costs to record: metrics, timelines and the log of decisions, in processor time of the stepping thread.

    python benchmarks/recording_cost.py [--json FILE]

The least of several rounds, less the empty loop's: on a busy machine that is what repeats.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry

from octavo_engine.batch import Batch, SchedulerStats, Slice
from octavo_engine.history.decisions import DecisionLog
from octavo_engine.history.recent import History
from octavo_engine.metrics import Metrics
from octavo_engine.request import EventKind, FinishReason, Request, SamplingParams, Status, WaitReason
from octavo_engine.server.reporting import Reporting

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
    made = _request()
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
