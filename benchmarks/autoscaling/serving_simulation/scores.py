"""What a run is judged by."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, fields

from .requests import Outcome, Request
from .service import Pod, Record


@dataclass(frozen=True)
class Score:
    """One run's figures.

    Attributes:
        late_share: requests that waited longer than the objective, or were lost, of all.
        late_seconds: time in which some request had been waiting longer than the objective.
        replica_hours: pods on a node, from their container's start to their end.
        peak: the most replicas that were wanted.
        overshoot: the peak less what the load needs, where that is known; below zero it never had enough.
        reversals: changes of direction of the wanted count.
        refused: answers 429 and 503 to requests, each of which its client tried again.
        lost: requests that were given up after refusals, or cut.
    """

    late_share: float
    late_seconds: float
    replica_hours: float
    peak: float
    overshoot: float
    reversals: float
    refused: float
    lost: float
    wait_p99: float


def score(record: Record, objective: float, start: int, needed: int) -> Score:
    """Judges a run; `start` is the count at its begin, `needed` the replicas its load needs."""
    late = [request for request in record.requests if _is_late(request, objective, record.horizon)]
    waits = sorted(_wait(request, record.horizon) for request in record.requests)
    peak = max([start, *(count for _, count in record.wanted)])
    return Score(
        late_share=len(late) / max(1, len(record.requests)),
        late_seconds=_covered(late, objective, record.horizon),
        replica_hours=sum(_node_seconds(pod, record.horizon) for pod in record.pods) / 3600,
        peak=peak,
        overshoot=peak - needed,
        reversals=reversals([start, *(count for _, count in record.wanted)]),
        refused=record.refused,
        lost=sum(request.outcome in (Outcome.LOST, Outcome.CUT) for request in record.requests),
        wait_p99=waits[int(0.99 * (len(waits) - 1))] if waits else 0.0,
    )


def mean(scores: Sequence[Score]) -> Score:
    """The mean of several runs."""
    return Score(**{item.name: sum(getattr(one, item.name) for one in scores) / len(scores) for item in fields(Score)})


def reversals(counts: Sequence[int]) -> int:
    """How often a series turns round."""
    steps = [after - before for before, after in itertools.pairwise(counts) if after != before]
    return sum((first > 0) != (second > 0) for first, second in itertools.pairwise(steps))


def _wait(request: Request, horizon: float) -> float:
    return (request.started if request.started is not None else request.ended or horizon) - request.arrival


def _is_late(request: Request, objective: float, horizon: float) -> bool:
    return request.outcome in (Outcome.LOST, Outcome.CUT) or _wait(request, horizon) > objective


def _covered(late: Sequence[Request], objective: float, horizon: float) -> float:
    """Length of the union of the times in which each of them was overdue."""
    covered, until = 0.0, 0.0
    for request in sorted(late, key=lambda one: one.arrival):
        begin, end = request.arrival + objective, request.arrival + _wait(request, horizon)
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


def _node_seconds(pod: Pod, horizon: float) -> float:
    if pod.scheduled is None:
        return 0.0
    return (horizon if pod.ended is None else pod.ended) - pod.scheduled
