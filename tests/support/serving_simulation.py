"""A service in virtual time: requests queue at replicas that run a few at once; pods take time to start.

Small on purpose: enough physics to hold the autoscaler's rules against, nothing of Kubernetes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from octavo_operator.autoscaling import Decision, Fleet, Limits, Load, Replica, State, decide

STEP = 5.0


@dataclass
class Simulated:
    """One replica; `requests` holds the seconds of work left of each running one."""

    name: str
    ready_at: float
    running: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    arrivals: int = 0
    completions: int = 0


@dataclass
class Simulation:
    """Replicas under load, steered by the autoscaler.

    Args:
        arrivals: requests that arrive in the step at a time.
        seats: requests a replica runs at once.
        service_seconds: how long one runs.
    """

    limits: Limits
    arrivals: Callable[[float], int]
    seats: int = 8
    service_seconds: float = 10.0
    start_seconds: float = 20.0
    silent: Callable[[str, float], bool] = lambda name, now: False
    now: float = 0.0
    made: int = 0
    replicas: list[Simulated] = field(default_factory=list)
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    state: State | None = None

    def run(self, seconds: float) -> list[tuple[float, Decision]]:
        """Advances virtual time; returns all decisions so far."""
        end = self.now + seconds
        if self.state is None:
            self.state = State(target=self.limits.minimum)
            self._resize(self.limits.minimum, at_once=True)
        while self.now < end:
            self._work()
            decision, self.state = decide(self.state, self._fleet(), self.limits, self.now)
            self.decisions.append((self.now, decision))
            self._resize(decision.replicas)
            self.now += STEP
        return self.decisions

    def changes(self) -> list[tuple[float, int]]:
        """Time and new count of every change."""
        return [(when, decision.replicas) for when, decision in self.decisions if decision.changed]

    @property
    def ready(self) -> list[Simulated]:
        """Replicas that serve."""
        return [replica for replica in self.replicas if self.now >= replica.ready_at]

    def _resize(self, count: int, at_once: bool = False) -> None:
        while len(self.replicas) < count:
            self.made += 1
            delay = 0.0 if at_once else self.start_seconds
            self.replicas.append(Simulated(f"pod-{self.made}", self.now + delay))
        while len(self.replicas) > count:
            self.replicas.remove(min(self.replicas, key=lambda replica: len(replica.running)))

    def _work(self) -> None:
        for index in range(self.arrivals(self.now)):
            target = self.ready[index % len(self.ready)]
            target.waiting.append(self.service_seconds)
            target.arrivals += 1
        for replica in self.ready:
            left = [seconds - STEP for seconds in replica.running]
            replica.completions += sum(seconds <= 0 for seconds in left)
            replica.running = [seconds for seconds in left if seconds > 0]
            while replica.waiting and len(replica.running) < self.seats:
                replica.running.append(replica.waiting.pop(0))

    def _fleet(self) -> Fleet:
        return Fleet(tuple(self._replica(replica) for replica in self.replicas))

    def _replica(self, replica: Simulated) -> Replica:
        if self.now < replica.ready_at or self.silent(replica.name, self.now):
            return Replica(replica.name, ready=self.now >= replica.ready_at)
        load = Load(
            waiting=len(replica.waiting),
            waiting_full=len(replica.waiting),
            running=len(replica.running),
            max_num_seqs=self.seats,
            arrivals_total=replica.arrivals,
            completions_total=replica.completions,
            kv_usage=len(replica.running) / self.seats,
            startup_seconds=self.start_seconds,
        )
        return Replica(replica.name, ready=True, load=load)
