"""The memory between reconciles and samples: what each service looks like, its load, and the autoscaler's state.

`observe` is told by every reconcile what the cluster has; `tick` asks the pods for their load and lets the pure
`autoscaling.decide` decide. Neither talks to the API server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from octavo_operator import autoscaling
from octavo_operator.autoscaling import Decision, Fleet, Limit, Limits, Load, Replica
from octavo_operator.checkpoint import Progress
from octavo_operator.manifests import DEPLOYMENT
from octavo_operator.metrics import Metrics
from octavo_operator.names import Key
from octavo_operator.observed import Observed, Ownership, Pod, ownership
from octavo_operator.scraping import Answer
from octavo_operator.spec import Spec
from octavo_operator.status import KEPT_DECISIONS, QueueFigures, Telemetry, decision_record

log = logging.getLogger(__name__)

PUBLISH_SECONDS = 30.0
_MOVED = 0.1
_PROGRESS_STEP = 10


class LoadSource(Protocol):
    """What `scraping.Scraper` offers."""

    async def loads(self, pods: Iterable[Pod]) -> dict[str, Answer]:
        """The answer of each pod, by pod name."""
        ...

    async def progress(self, pods: Iterable[Pod]) -> list[Progress]:
        """How far the fetch in each pod is; of those that tell."""
        ...


@dataclass
class Entry:
    """What is known of one service."""

    spec: Spec
    observed: Observed
    state: autoscaling.State | None = None
    decision: Decision | None = None
    decisions: list[dict[str, Any]] = field(default_factory=list)
    answers: dict[str, Answer] | None = None
    queue: QueueFigures | None = None
    published_at: float = 0.0
    load_seconds: float | None = None
    progress: Progress | None = None
    progress_at: float = 0.0

    @property
    def uid(self) -> str:
        """Which resource of its name this is."""
        return uid_of(self.observed)


class Scaler:
    """Telemetry and replica counts of all services.

    Args:
        clock: monotonic seconds.
        window: seconds a decrease waits.
    """

    def __init__(self, source: LoadSource, metrics: Metrics, window: float, clock: Callable[[], float]) -> None:
        self._source = source
        self._metrics = metrics
        self._window = window
        self._clock = clock
        self._entries: dict[Key, Entry] = {}
        self.last_tick = clock()

    def observe(self, key: Key, spec: Spec, observed: Observed) -> Telemetry:
        """Takes note of a service as it is now, and tells what is known of its load."""
        entry = self._entries.get(key)
        if entry is not None and entry.uid != uid_of(observed):
            # Deleted and made again before its end was seen: the namesake has learned nothing and wants nothing yet.
            self.forget(key)
            entry = None
        if entry is None:
            kept = observed.resource.get("status", {}).get("scaling", {}).get("decisions", [])
            entry = self._entries[key] = Entry(spec, observed, decisions=list(kept))
        entry.spec, entry.observed = spec, observed
        if spec.scaler is None:
            entry.state = entry.decision = None
        elif entry.state is None:
            entry.state = autoscaling.State(target=_first_target(spec, observed))
        return _telemetry(entry)

    def forget(self, key: Key) -> None:
        """Drops a service that is gone."""
        if self._entries.pop(key, None):
            self._metrics.forget(key)

    def known(self) -> set[Key]:
        """Services with an entry."""
        return set(self._entries)

    async def tick(self) -> set[Key]:
        """One sample of every service. Returns those whose status or children must be looked at again."""
        keys = list(self._entries)
        changed = await asyncio.gather(*(self._sample(key, self._entries[key]) for key in keys))
        self.last_tick = self._clock()
        return {key for key, is_changed in zip(keys, changed, strict=True) if is_changed}

    async def _sample(self, key: Key, entry: Entry) -> bool:
        before = _telemetry(entry)
        answers, fetches = await asyncio.gather(
            self._source.loads([pod for pod in entry.observed.pods if pod.ready and pod.ip]),
            self._source.progress(entry.observed.fetching),
        )
        if self._entries.get(key) is not entry:
            return False  # deleted while its pods were asked
        now = self._clock()
        entry.answers = answers
        scaled = entry.state is not None and not entry.spec.paused and self._decide(key, entry, now)
        _publish(entry, now, scaled)
        _publish_progress(entry, now, fetches)
        return _telemetry(entry) != before

    def _decide(self, key: Key, entry: Entry, now: float) -> bool:
        assert entry.state is not None
        limits = limits_of(entry.spec, self._window)
        fleet = fleet_of(entry.observed, entry.answers or {})
        try:
            decision, entry.state = autoscaling.decide(entry.state, fleet, limits, now)
        except Exception:
            # A fault of ours, with one service's figures: the others are still scaled, and this one's count is held.
            log.exception("%s: no decision could be made; the count is held and figures are gathered anew", key)
            entry.state = autoscaling.State(target=entry.state.target)
            return False
        self._metrics.decided(key, decision)
        entry.decision = decision if decision.changed or entry.decision is None else _kept(entry.decision, decision)
        if decision.changed:
            log.info("%s: %d -> %d replicas: %s", key, decision.previous, decision.replicas, decision.message)
            wall = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            entry.decisions = [decision_record(decision, wall), *entry.decisions][:KEPT_DECISIONS]
        return decision.changed


def uid_of(observed: Observed) -> str:
    """Which resource of its name this is."""
    return str(observed.resource.get("metadata", {}).get("uid", ""))


def _kept(before: Decision, latest: Decision) -> Decision:
    """The latest decision without what moves at every sample, so that telemetry changes only when a reader cares."""
    if before.limited == latest.limited and before.replicas == latest.replicas:
        return before
    return latest


def limits_of(spec: Spec, window: float) -> Limits:
    """The autoscaler's bounds, with defaults for what the spec leaves out."""
    wish = spec.scaler
    assert wish is not None
    assert wish.max_replicas is not None  # CEL requires it in mode Operator
    return Limits(
        minimum=wish.min_replicas or 1,
        maximum=wish.max_replicas,
        queue_depth=wish.target_queue_depth or 4,
        objective_seconds=wish.objective_seconds or 30,
        window_seconds=window,
    )


def fleet_of(observed: Observed, answers: dict[str, Answer]) -> Fleet:
    """Pods and answers as the autoscaler sees them; a pod that goes is no replica any more."""
    present = [pod for pod in observed.pods if not (pod.terminating or pod.finished)]
    return Fleet(tuple(_replica(pod, answers.get(pod.name)) for pod in present), rolling=observed.rolling)


def _replica(pod: Pod, answer: Answer | None) -> Replica:
    stuck = None
    if pod.unschedulable:
        stuck = Limit.UNSCHEDULABLE
    elif pod.starting and pod.cause and pod.cause.final:
        stuck = Limit.FAILING
    return Replica(pod.name, pod.ready, stuck, answer if isinstance(answer, Load) else None)


def _first_target(spec: Spec, observed: Observed) -> int:
    """After an operator restart, what the Deployment has; for a new service, the minimum."""
    limits = limits_of(spec, 0.0)
    live = observed.children.get(DEPLOYMENT)
    if observed.workload is None or ownership(live, observed.resource) is not Ownership.OURS:
        return limits.minimum
    return min(max(observed.workload.desired, limits.minimum), limits.maximum)


def _telemetry(entry: Entry) -> Telemetry:
    spec, answers = entry.spec, entry.answers
    loads = [answer for answer in (answers or {}).values() if isinstance(answer, Load)]
    silent = sorted(answer for answer in (answers or {}).values() if isinstance(answer, str))
    desired = entry.state.target if entry.state else 1 if spec.replicas is None else spec.replicas
    lowers = entry.decision and entry.observed.workload and desired < entry.observed.workload.desired
    return Telemetry(
        desired=desired,
        ready=None if answers is None else len(answers),
        answered=len(loads),
        no_data=silent[0] if silent else "",
        queue=entry.queue,
        load_seconds=entry.load_seconds,
        limited=entry.decision.limited if entry.decision else None,
        victim=entry.decision.victim if entry.decision and lowers else None,
        decisions=tuple(entry.decisions),
        progress=entry.progress,
    )


def _publish(entry: Entry, now: float, scaled: bool) -> None:
    """Moves the figures that status shows: with a decision at once, otherwise seldom and only for a real change."""
    loads = [answer for answer in (entry.answers or {}).values() if isinstance(answer, Load)]
    starts = [load.startup_seconds for load in loads if load.startup_seconds is not None]
    entry.load_seconds = max(starts, default=entry.load_seconds)
    if not loads:
        return
    fullest = max(loads, key=lambda load: (bool(load.limiter), load.waiting, load.running))
    waiting, running = sum(load.waiting for load in loads), sum(load.running for load in loads)
    latest = QueueFigures(waiting, running, fullest.limiter, fullest.limited)
    due = now - entry.published_at >= PUBLISH_SECONDS
    if entry.queue is None or scaled or (due and moved(entry.queue, latest)):
        entry.queue, entry.published_at = latest, now


def _publish_progress(entry: Entry, now: float, fetches: list[Progress]) -> None:
    """The slowest fetch: at its begin and its end, with every tenth of its way, otherwise seldom."""
    slowest = min(fetches, key=lambda fetch: fetch.percent or 0, default=None)
    before, due = entry.progress, now - entry.progress_at >= PUBLISH_SECONDS
    far = before and slowest and abs((slowest.percent or 0) - (before.percent or 0)) >= _PROGRESS_STEP
    if before is None or slowest is None or due or far:
        entry.progress, entry.progress_at = slowest, now


def moved(before: QueueFigures, latest: QueueFigures) -> bool:
    """Whether a figure changed by over a tenth, or something else limits; a sentence's own figures always move."""
    if before.limiter != latest.limiter:
        return True
    pairs = ((before.waiting, latest.waiting), (before.running, latest.running))
    return any(abs(new - old) > _MOVED * max(old, new) for old, new in pairs)
