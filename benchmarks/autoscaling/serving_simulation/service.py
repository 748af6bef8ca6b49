"""A Deployment in virtual time: pods that wait for a node, load a model, serve, drain and go; and who asks them.

One loop over a heap of events. What happens at one time happens in the order in which it was announced, so equal
seeds give equal runs.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from .clients import Clients, Connection
from .engine import Engine, Profile
from .policies.view import Choice, PodView, Policy, View
from .requests import Outcome, Request, fresh

ACTUATION_SECONDS = 1.0  # from a decision to the pod's creation or end
SCHEDULING_SECONDS = 2.0  # from creation to a started container
DRAIN_SECONDS = 45.0


@dataclass(frozen=True)
class World:
    """Everything around the policy.

    Attributes:
        load_seconds: from a started container to a ready one; each pod's own differs by up to a tenth.
        places: replicas that the nodes can take, by time.
        silent: whether a pod has no metrics at a time, by its rank among the ready ones; the oldest has rank 0.
        horizon: seconds that are simulated.
    """

    requests: list[Request]
    profile: Profile = field(default_factory=Profile)
    load_seconds: float = 40.0
    horizon: float = 3600.0
    start_replicas: int = 1
    places: Callable[[float], int] = lambda now: 1000
    silent: Callable[[int, float], bool] = lambda rank, now: False
    scrape_failures: float = 0.002
    kept_share: float = 0.5


@dataclass
class Pod:
    """One replica and its life."""

    number: int
    created: float
    load_seconds: float
    scheduled: float | None = None
    ready_at: float | None = None
    stopping: float | None = None
    ended: float | None = None
    engine: Engine | None = None
    version: int = 0  # of the engine's announced next event

    @property
    def name(self) -> str:
        """The pod's name."""
        return f"pod-{self.number}"

    @property
    def serves(self) -> bool:
        """Ready and not stopping: where new connections go."""
        return self.engine is not None and self.stopping is None


@dataclass
class Record:
    """What a run leaves behind."""

    requests: list[Request]
    horizon: float
    pods: list[Pod] = field(default_factory=list)
    wanted: list[tuple[float, int]] = field(default_factory=list)  # (time, count) of each change
    refused: int = 0
    preemptions: int = 0


class Simulation:
    """Runs one policy in one world. `run` once."""

    def __init__(self, world: World, policy: Policy, seed: int = 1) -> None:
        self._world = world
        self._policy = policy
        self._rng = random.Random(seed)
        self._clients = Clients(random.Random(seed + 1), world.kept_share)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._numbers = itertools.count()
        self._connections: dict[int, Connection] = {}
        self._pods: list[Pod] = []
        self.now = 0.0
        self.wanted = world.start_replicas
        self.record = Record(fresh(world.requests), world.horizon)

    def run(self) -> Record:
        """Everything until the horizon."""
        for _ in range(self.wanted):
            self._start(self._create())
        for request in self.record.requests:
            self._at(request.arrival, lambda request=request: self._send(request))  # type: ignore[misc]
        self._at(self._rng.uniform(0, self._policy.period), self._look)
        while self._events and self._events[0][0] <= self._world.horizon:
            self.now, _, act = heapq.heappop(self._events)
            act()
        self.now = self._world.horizon
        self.record.refused = self._clients.refused
        self.record.preemptions = sum(pod.engine.preemptions for pod in self.record.pods if pod.engine)
        return self.record

    def _at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._count), act))

    # -- the policy ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        choice = self._policy.choose(self.view(), self.now)
        if choice.replicas != self.wanted:
            self.wanted = choice.replicas
            self.record.wanted.append((self.now, self.wanted))
        self._at(self.now + ACTUATION_SECONDS, lambda: self._resize(choice))
        self._at(self.now + self._policy.period * self._rng.uniform(0.95, 1.05), self._look)

    def view(self) -> View:
        """What a policy sees now."""
        ranks = itertools.count()
        present = [pod for pod in self._pods if pod.stopping is None]
        return View(tuple(self._seen(pod, next(ranks) if pod.engine else 0) for pod in present), self.wanted)

    def _seen(self, pod: Pod, rank: int) -> PodView:
        if pod.engine is None:
            return PodView(pod.name, ready=False, unschedulable=pod.scheduled is None)
        self._finish(pod)
        silent = self._world.silent(rank, self.now) or self._rng.random() < self._world.scrape_failures
        return PodView(pod.name, ready=True, load=None if silent else pod.engine.load(pod.load_seconds))

    # -- pods ----------------------------------------------------------------------------------------------------------

    def _resize(self, choice: Choice) -> None:
        present = [pod for pod in self._pods if pod.stopping is None]
        for _ in range(choice.replicas - len(present)):
            self._create()
        # As a ReplicaSet does it: without a node first, then not ready, then the marked one, then the youngest.
        present.sort(key=lambda pod: (pod.scheduled is not None, pod.engine is not None, pod.name != choice.victim,
                                      -(pod.ready_at or pod.created)))  # fmt: skip
        for pod in present[: max(0, len(present) - choice.replicas)]:
            self._stop(pod)
        self._schedule()

    def _create(self) -> Pod:
        load_seconds = self._world.load_seconds * self._rng.uniform(0.9, 1.1)
        pod = Pod(next(self._numbers), self.now, load_seconds)
        self._pods.append(pod)
        self.record.pods.append(pod)
        return pod

    def _schedule(self) -> None:
        """Gives nodes to pods that wait for one, the oldest first."""
        free = self._world.places(self.now) - sum(pod.scheduled is not None for pod in self._pods)
        for pod in [pod for pod in self._pods if pod.scheduled is None][: max(0, free)]:
            pod.scheduled = self.now
            delay = SCHEDULING_SECONDS * self._rng.uniform(0.5, 1.5) + pod.load_seconds
            self._at(self.now + delay, lambda pod=pod: self._start(pod))  # type: ignore[misc]

    def _start(self, pod: Pod) -> None:
        if pod.stopping is None:
            pod.scheduled = self.now if pod.scheduled is None else pod.scheduled
            pod.ready_at, pod.engine = self.now, Engine(self._world.profile, self.now)

    def _stop(self, pod: Pod) -> None:
        """As a drain does: what waits goes elsewhere, what runs may finish in time."""
        pod.stopping = self.now
        if pod.engine is None:
            self._remove(pod)
            return
        self._finish(pod)
        for request in pod.engine.drain():
            self._refused(request, "stopping")
        self._at(self.now + DRAIN_SECONDS, lambda: self._kill(pod))
        self._plan(pod)

    def _kill(self, pod: Pod) -> None:
        if pod.ended is None and pod.engine is not None:
            self._finish(pod)
            for request in pod.engine.cut():
                request.outcome, request.ended = Outcome.CUT, self.now
            self._remove(pod)

    def _remove(self, pod: Pod) -> None:
        if pod.ended is None:
            pod.ended = self.now
            self._pods.remove(pod)
            self._schedule()

    # -- requests ------------------------------------------------------------------------------------------------------

    def _send(self, request: Request) -> None:
        ready = {pod.name: pod for pod in self._pods if pod.serves}
        connection = self._clients.connect(list(ready), self.now)
        if connection is None:
            self._refused(request, "nobody")
            return
        pod = ready[connection.pod]
        self._finish(pod)
        assert pod.engine is not None
        if pod.engine.full:
            self._refused(request, "full")
            return
        self._connections[id(request)] = connection
        pod.engine.submit(request)
        self._plan(pod)

    def _refused(self, request: Request, why: str) -> None:
        self._connections.pop(id(request), None)
        if (when := self._clients.retry_after(request, why, self.now)) is not None:
            self._at(when, lambda: self._send(request))

    def _finish(self, pod: Pod) -> None:
        """Brings a replica to now and lets go of what ended."""
        assert pod.engine is not None
        ended = pod.engine.advance(self.now)
        for request in ended:
            crowded = bool(pod.engine.waiting) or pod.stopping is not None
            if connection := self._connections.pop(id(request), None):
                self._clients.give_back(connection, self.now, crowded)
        if pod.stopping is not None and not pod.engine.running:
            self._remove(pod)

    def _plan(self, pod: Pod) -> None:
        """Announces the replica's next event; an earlier announcement no longer counts."""
        assert pod.engine is not None
        pod.version += 1
        version, when = pod.version, pod.engine.next_event()

        def step() -> None:
            if pod.version == version and pod.ended is None:
                self._finish(pod)
                if pod.ended is None:
                    self._plan(pod)

        if when <= self._world.horizon:
            self._at(when, step)
