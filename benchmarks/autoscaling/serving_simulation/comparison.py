"""Runs every policy on every scenario, several times, and finds out what each load needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from octavo_operator.autoscaling import Limits

from .policies.fixed import Fixed
from .policies.hpa import Keda, QueueDepthHpa
from .policies.knative import Knative
from .policies.octavo import Octavo
from .policies.view import Policy
from .scenarios import MAXIMUM, MINIMUM, OBJECTIVE, QUEUE_DEPTH, Scenario
from .scores import Score, mean, score
from .service import Record, Simulation, World

LIMITS = Limits(MINIMUM, MAXIMUM, QUEUE_DEPTH, OBJECTIVE)
ENOUGH = 0.01  # a count is what a load needs if at most this share of its requests is late

POLICIES: dict[str, Callable[[World], Policy]] = {
    "Octavo": lambda _: Octavo(LIMITS),
    "HPA, queue depth": lambda _: QueueDepthHpa(MINIMUM, MAXIMUM, QUEUE_DEPTH),
    "KEDA, total queue": lambda _: Keda(MINIMUM, MAXIMUM, QUEUE_DEPTH),
    "Knative, concurrency": lambda world: Knative(MINIMUM, MAXIMUM, world.profile.max_num_seqs),
}


@dataclass(frozen=True)
class Result:
    """One policy on one scenario: its mean score, and the run of the first seed for a picture."""

    scenario: Scenario
    policy: str
    score: Score
    record: Record


def compare(scenarios: Iterable[Scenario], seeds: Iterable[int], names: Iterable[str] = POLICIES) -> list[Result]:
    """All results, scenario by scenario."""
    results = []
    for scenario in scenarios:
        worlds = {seed: scenario.world(seed) for seed in seeds}
        needed = {seed: needs(world) for seed, world in worlds.items()}
        for name in names:
            records = {seed: Simulation(world, POLICIES[name](world), seed).run() for seed, world in worlds.items()}
            scores = [
                score(record, OBJECTIVE, worlds[seed].start_replicas, needed[seed]) for seed, record in records.items()
            ]
            results.append(Result(scenario, name, mean(scores), next(iter(records.values()))))
    return results


def needs(world: World) -> int:
    """The fewest replicas, there from the start, with which hardly a request is late."""
    for count in range(1, MAXIMUM + 1):
        steady = replace(world, start_replicas=count, places=lambda _: 1000)
        record = Simulation(steady, Fixed(count)).run()
        if score(record, OBJECTIVE, count, count).late_share <= ENOUGH:
            return count
    return MAXIMUM
