"""The scaler between reconciles and samples: services do not disturb each other, and time is differences of it."""

import logging
from datetime import UTC, datetime, timedelta

import pytest

from octavo_operator import scaler
from octavo_operator.autoscaling import Load
from operator_samples import pod, resource
from operator_world import World


async def grown(world, ticks=2):
    await world.settle()
    world.cluster.pods = [pod(ready=True)]
    await world.settle()
    world.loads.answer = Load(waiting=9, waiting_full=9, running=2, max_num_seqs=2)
    await world.tick(ticks)
    await world.settle()


async def test_a_fault_in_one_decision_holds_its_count_and_ends_nothing(monkeypatch, caplog):
    world = World(resource(autoscaling={"maxReplicas": 3}))
    await grown(world)
    assert world.replicas == 2

    def broken(*_):
        raise ZeroDivisionError

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
        patch.setattr(scaler.autoscaling, "decide", broken)
        await world.tick()
    assert "count is held" in caplog.text
    await world.settle()
    assert world.replicas == 2


@pytest.mark.parametrize("skew", [-600, 600, 86_400])
async def test_a_wall_clock_that_is_wrong_changes_no_decision(monkeypatch, skew):
    """Ten minutes off, or set by a day while it runs: only what status tells of the time follows it."""

    class Skewed(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(seconds=skew)

    world = World(resource(autoscaling={"maxReplicas": 3}))
    monkeypatch.setattr(scaler, "datetime", Skewed)
    await grown(world)
    assert world.replicas == 2
    (record,) = world.cluster.resource["status"]["scaling"]["decisions"]
    told = datetime.fromisoformat(record["time"])
    assert abs((told - datetime.now(UTC)).total_seconds() - skew) < 60


async def test_a_process_that_was_stopped_for_an_hour_lowers_nothing_at_once():
    """Its clock went on, its samples did not: an hour of idleness has not been seen."""
    world = World(resource(autoscaling={"maxReplicas": 3}))
    await grown(world)
    world.cluster.pods = [pod("a", ready=True), pod("b", ready=True)]
    world.loads.answer = Load(max_num_seqs=2)
    await world.settle()
    await world.tick(5)
    world.now += 3600
    await world.tick(2)
    await world.settle()
    assert world.replicas == 2
    await world.tick(70)
    await world.settle()
    assert world.replicas == 1


async def test_what_limits_the_fullest_replica_is_in_status_and_moves_seldom():
    """Its figures change with every look; status is written when something else limits, after half a minute."""
    world = World(resource(replicas=1))
    await world.settle()
    world.cluster.pods = [pod(ready=True)]
    await world.settle()

    async def says(limiter, sentence, ticks):
        world.loads.answer = Load(waiting=9, running=2, max_num_seqs=2, limiter=limiter, limited=sentence)
        await world.tick(ticks)
        await world.settle()
        return world.cluster.resource["status"]["queue"]

    told = {"waiting": 9, "running": 2, "limiter": "kv", "message": "9 wait for blocks."}
    assert await says("kv", "9 wait for blocks.", 1) == told
    assert await says("kv", "10 wait for blocks.", 20) == told
    assert (await says("queue", "9 wait for batch_full.", 20))["limiter"] == "queue"
    assert await says("", "", 20) == {"waiting": 9, "running": 2}
