"""Runs every policy on every scenario, several times, and finds out what each load needs."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from octavo_operator.autoscaling import Limits

from .policies.fixed import Fixed
from .policies.hpa import Keda, QueueDepthHpa
from .policies.knative import Knative
from .policies.octavo import Octavo
from .policies.view import Policy
from .scenarios import MAXIMUM, MINIMUM, OBJECTIVE, QUEUE_DEPTH, SCENARIOS, Scenario
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
    """One policy on one scenario: its mean score over seeds, and the run of the first seed for a picture.

    Attributes:
        needed: the fewest replicas, there all the time, that keep to the objective; the mean over seeds.
        start: the count at the begin.
    """

    scenario: Scenario
    policy: str
    score: Score
    record: Record
    needed: float
    start: int


def compare(scenarios: Sequence[Scenario], seeds: Sequence[int], policies: Sequence[str]) -> list[Result]:
    """All results, scenario by scenario; scenarios run side by side."""
    places = [SCENARIOS.index(scenario) for scenario in scenarios]
    with ProcessPoolExecutor() as pool:
        done = pool.map(_compare_one, places, [seeds] * len(places), [policies] * len(places))
        # Worlds are functions, which do not travel between processes: results come back without their scenario.
        return [Result(scenario, *rest) for scenario, found in zip(scenarios, done, strict=True) for rest in found]


def _compare_one(
    place: int, seeds: Sequence[int], policies: Sequence[str]
) -> list[tuple[str, Score, Record, float, int]]:
    worlds = {seed: SCENARIOS[place].world(seed) for seed in seeds}
    needed = {seed: needs(world) for seed, world in worlds.items()}
    found = []
    for name in policies:
        records = {seed: Simulation(world, POLICIES[name](world), seed).run() for seed, world in worlds.items()}
        scores = [
            score(record, OBJECTIVE, worlds[seed].start_replicas, needed[seed]) for seed, record in records.items()
        ]
        first = replace(records[seeds[0]], pods=[])
        need = sum(needed.values()) / len(needed)
        found.append((name, mean(scores), first, need, worlds[seeds[0]].start_replicas))
    return found


def needs(world: World) -> int:
    """The fewest replicas, there from the start, with which hardly a request is late."""

    def is_enough(count: int) -> bool:
        steady = replace(world, start_replicas=count, places=lambda _: MAXIMUM)
        record = Simulation(steady, Fixed(count)).run()
        return score(record, OBJECTIVE, count, count).late_share <= ENOUGH

    return MINIMUM + bisect.bisect_left(range(MINIMUM, MAXIMUM), True, key=is_enough)


def by_scenario(results: Iterable[Result]) -> dict[str, dict[str, Score]]:
    """Scores by the scenario's name and the policy's."""
    found: dict[str, dict[str, Score]] = {}
    for result in results:
        found.setdefault(result.scenario.name, {})[result.policy] = result.score
    return found
