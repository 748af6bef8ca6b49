"""Whether a new replica comes beside the old one or in its place."""

import pytest

from operator_samples import pod, unscheduled
from rollout_world import CROWDED, NEW, TOO_LARGE, passes, serving


def strategy(world):
    return world.deployment["spec"]["strategy"]["rollingUpdate"]


SURGE, IN_PLACE = {"maxSurge": 1, "maxUnavailable": 0}, {"maxSurge": 0, "maxUnavailable": 1}


async def rolling(rollout, words=CROWDED):
    """A new revision whose first replica waits for room."""
    world = await serving(rollout=rollout)
    world.cluster.instant = False
    world.change(engine=NEW)
    await world.settle()
    await passes(world)
    world.cluster.pods = [pod("old", ready=True), pod("new", **unscheduled(words))]
    await world.settle()
    assert world.phase == "Rolling"
    return world


@pytest.mark.parametrize(
    ("rollout", "words", "expected"),
    [
        ("Auto", CROWDED, IN_PLACE),
        ("Auto", TOO_LARGE, SURGE),
        ("Auto", "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.", SURGE),
        ("Surge", CROWDED, SURGE),
        ("InPlace", TOO_LARGE, IN_PLACE),
    ],
)
async def test_how_a_new_replica_gets_room(rollout, words, expected):
    world = await rolling(rollout, words)
    assert strategy(world) == expected


async def test_auto_stays_in_place_until_the_rollout_ends():
    world = await rolling("Auto")
    world.cluster.pods = [pod("old", ready=True), pod("new")]
    world.restart_operator()
    await world.settle()
    assert strategy(world) == IN_PLACE
    world.cluster.roll_out()
    await world.settle()
    assert strategy(world) == SURGE
    assert world.phase == "Complete"


async def test_a_pod_without_room_outside_a_rollout_changes_no_strategy():
    world = await serving(replicas=2)
    world.cluster.pods.append(pod("second", **unscheduled(CROWDED)))
    await world.settle()
    assert strategy(world) == SURGE
