"""Looks at what is known without asking: they cost no request, and one that is behind does no harm."""

import asyncio
import copy
import dataclasses
import random

import pytest

from octavo_operator.errors import Conflict, Missing, Refused, Retryable
from octavo_operator.manifests import CONFIG_MAP, DEPLOYMENT, SERVICE
from octavo_operator.observed import Outcome, Purpose
from octavo_operator.reconcile import AT_ONCE
from operator_samples import pod, resource
from operator_world import KEY, World


def latest(views):
    return views[-1] if views else None


async def remembering():
    """A settled service that is known as it is."""
    world = World(resource(replicas=2))
    await world.settle()
    world.cluster.recalled = latest
    world.cluster.asked = 0
    return world


async def test_what_is_known_is_not_asked_for():
    world = await remembering()
    world.change(drainSeconds=7)
    world.cluster.pods = [pod(ready=True), pod("assistant-2", ready=True)]
    await world.settle()
    assert world.cluster.asked == 0
    assert world.phase == "Checking", "that of the changed spec"
    assert world.cluster.resource["status"]["readyReplicas"] == 2


async def test_a_known_service_comes_to_the_same_as_one_that_is_asked_for():
    asked, known = World(resource()), World(resource())
    known.cluster.recalled = latest
    for world in (asked, known):
        await world.settle()
    assert known.cluster.asked == 0
    assert known.cluster.children == asked.cluster.children
    assert known.cluster.resource == asked.cluster.resource


async def test_what_follows_from_a_write_is_looked_for_without_its_event():
    world = await remembering()
    world.change(replicas=3)
    assert "Deployment" in await world.reconcile()
    assert world.look_again == AT_ONCE
    await world.settle()
    assert world.look_again is None


async def test_a_write_that_changes_nothing_is_not_followed_by_another():
    """An API server that writes a field in another way would else be asked to change it for ever."""
    world = await remembering()
    world.cluster.children[DEPLOYMENT]["spec"]["replicas"] = 7
    world.cluster.execute = lambda *step: asyncio.sleep(0, False)
    await world.reconcile()
    assert world.look_again is None


async def test_a_write_for_an_old_spec_is_not_done():
    world = await remembering()
    old = world.cluster.views[-1].resource
    world.change(replicas=3)
    await world.settle()
    await world.cluster.known(KEY)
    mixed = dataclasses.replace(world.cluster.views[-1], resource=old)
    world.cluster.recalled = lambda views: mixed
    assert await world.reconcile() == []
    assert world.replicas == 3
    assert world.cluster.asked == 1


async def test_a_child_that_has_changed_since_is_looked_at_before_it_is_changed():
    world = await remembering()
    world.cluster.children[DEPLOYMENT]["spec"]["replicas"] = 7
    await world.cluster.known(KEY)
    old = world.cluster.views[-1]
    world.cluster.children[DEPLOYMENT]["spec"]["minReadySeconds"] = 3
    world.cluster.recalled = lambda views: old
    assert "Deployment" in await world.reconcile()
    assert world.cluster.asked == 1
    assert world.replicas == 2


async def test_a_foreign_object_that_nobody_has_told_of_is_left_alone():
    world = await remembering()
    del world.cluster.children[SERVICE]
    await world.cluster.known(KEY)
    old = world.cluster.views[-1]
    theirs = {"kind": "Service", "metadata": {"name": "assistant", "uid": "theirs"}, "spec": {"mine": False}}
    world.cluster.children[SERVICE] = copy.deepcopy(theirs)
    world.cluster.recalled = lambda views: old
    await world.settle()
    assert world.cluster.children[SERVICE] == theirs
    assert world.cluster.conditions()["Stalled"]["reason"] == "ForeignObject"
    before = world.cluster.asked
    assert await world.reconcile() == []
    assert world.cluster.asked == before + 1, "no watch tells of it: every look asks"


@pytest.mark.parametrize("error", [Conflict("behind", 409), Missing("gone", 404)])
async def test_a_status_that_rests_on_an_old_version_is_described_anew(error):
    world = await remembering()
    world.cluster.pods = [pod(ready=True)]
    world.cluster.failing["status"] = error
    assert await world.reconcile() == ["status"]
    assert world.cluster.asked == 1
    assert world.cluster.resource["status"]["readyReplicas"] == 1


async def test_after_a_write_that_was_not_answered_everything_is_asked_for():
    world = await remembering()
    world.change(replicas=3)
    world.cluster.failing["Deployment"] = Retryable("reset", 0)
    with pytest.raises(Retryable):
        await world.reconcile()
    assert world.cluster.asked == 0
    await world.reconcile()
    assert (world.replicas, world.cluster.asked) == (3, 1)


async def test_what_may_not_be_read_is_told_as_if_nothing_was_known():
    world = await remembering()

    async def known(key):
        raise Refused("GET podmonitors: 403 forbidden", 403)

    world.cluster.known = known
    world.cluster.failing["observe"] = Refused("GET podmonitors: 403 forbidden", 403)
    with pytest.raises(Refused):
        await world.reconcile()
    assert world.cluster.conditions()["Stalled"]["reason"] == "OperatorForbidden"


async def test_a_deleted_service_is_asked_for_before_its_children_are_missed():
    """The end of the children may be told before that of the service."""
    world = await remembering()
    world.cluster.children.clear()
    await world.cluster.known(KEY)
    old, world.cluster.resource = world.cluster.views[-1], None
    world.cluster.recalled = lambda views: old
    assert await world.reconcile() == []
    assert world.cluster.children == {}
    assert world.scaler.known() == set()


STEPS = [
    {"replicas": 3},
    {"replicas": 0},
    {"drainSeconds": 9},
    {"engine": {"maxNumSeqs": 7}},
    {"allowFrom": [{"podSelector": {"matchLabels": {"app": "web"}}}]},
    {"engine": None, "drainSeconds": None, "allowFrom": None, "replicas": 2},
]


async def meddle(world, chance):
    """Others do something to the children, or a Job ends."""
    match chance.randrange(5):
        case 0:
            world.cluster.children.pop(chance.choice([SERVICE, CONFIG_MAP]), None)
        case 1 if DEPLOYMENT in world.cluster.children:
            world.cluster.children[DEPLOYMENT]["spec"]["replicas"] = 11
        case 2 if world.cluster.job(Purpose.PREFLIGHT):
            world.cluster.end_job(Purpose.PREFLIGHT, Outcome.PASSED)
        case 3:
            world.cluster.pods = [pod(ready=chance.random() < 0.5)]


@pytest.mark.parametrize("seed", range(10))
async def test_whatever_old_views_are_known_it_comes_to_the_same(seed):
    """Each look is given any view that there ever was; once the present one is known, children = f(spec)."""
    chance = random.Random(seed)
    world, twin = World(resource(replicas=1)), World(resource(replicas=1))
    world.cluster.recalled = lambda views: chance.choice([None, *views[-6:]])
    for _ in range(40):
        if chance.random() < 0.3:
            step = chance.choice(STEPS)
            world.change(**step)
            twin.change(**step)
        if chance.random() < 0.3:
            await meddle(world, chance)
        if "Deployment" in await world.reconcile():
            assert world.replicas == world.cluster.resource["spec"]["replicas"], "a write for a spec that was"
    world.cluster.recalled = latest
    for one in (world, twin):
        one.cluster.pods = []
        for _ in range(4):
            await one.settle()
            if one.cluster.job(Purpose.PREFLIGHT):
                one.cluster.end_job(Purpose.PREFLIGHT, Outcome.PASSED)
    assert specs(world) == specs(twin)
    assert DEPLOYMENT in specs(world)


def specs(world):
    """What the children are asked to be; the revisions on record differ with the way that was gone."""
    return {kind: live.get("spec") for kind, live in world.cluster.children.items() if kind != CONFIG_MAP}
