"""Models that are fetched: pinned by what a preflight found, loaded into a cache before a replica reads them."""

from octavo_operator.manifests import DEPLOYMENT
from octavo_operator.observed import Outcome, Purpose
from operator_samples import resource
from operator_world import World
from rollout_world import FOUND, HUB, kept, passes, serving


async def test_a_fetched_model_is_pinned_by_its_preflight():
    world = World(resource(model=HUB))
    await world.settle()
    assert DEPLOYMENT not in world.cluster.children
    preflight = world.cluster.job(Purpose.PREFLIGHT)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert preflight[: preflight.index("--")] == ["--source=hf://org/name"]
    await passes(world, FOUND)
    (loader,) = world.deployment["spec"]["template"]["spec"]["initContainers"]
    assert "--revision=c0ffee" in loader["args"]
    assert kept(world).revisions[kept(world).active].checkpoint.bytes == 1 << 30


async def test_a_fetched_model_whose_preflight_tells_nothing_is_stalled():
    world = World(resource(model=HUB))
    await world.settle()
    await passes(world, "all is well")
    assert world.cluster.conditions()["Stalled"]["reason"] == "PreflightReportMissing"
    assert DEPLOYMENT not in world.cluster.children


async def test_a_restart_of_a_fetched_model_resolves_its_revision_anew():
    world = await serving(model=HUB)
    world.change(restartedAt="now")
    await world.settle()
    await passes(world, FOUND.replace("c0ffee", "decade"))
    (loader,) = world.deployment["spec"]["template"]["spec"]["initContainers"]
    assert "--revision=decade" in loader["args"]


async def test_a_cache_is_filled_before_a_replica_reads_it():
    world = World(resource(model=HUB, cache={"persistentVolumeClaim": "models"}))
    await world.settle()
    await passes(world, FOUND)
    assert (world.phase, DEPLOYMENT in world.cluster.children) == ("Loading", False)
    assert world.cluster.job(Purpose.PREFLIGHT) is None
    (container,) = world.cluster.job(Purpose.LOADER)["spec"]["template"]["spec"]["containers"]
    folder = next(arg.partition("=")[2] for arg in container["args"] if arg.startswith("--destination="))
    await passes(world, purpose=Purpose.LOADER)
    assert f"--model={folder}" in world.args
    assert "initContainers" not in world.deployment["spec"]["template"]["spec"]
    assert world.cluster.jobs == {}


async def test_a_loader_that_fails_leaves_the_replicas():
    world = await serving()
    world.change(model=HUB, cache={"persistentVolumeClaim": "models"})
    await world.settle()
    await passes(world, FOUND)
    world.cluster.end_job(Purpose.LOADER, Outcome.FAILED, "DiskFull: 2 GiB are needed")
    await world.settle()
    assert world.cluster.conditions()["Stalled"]["reason"] == "DiskFull"
    assert "--model=/models/smollm2" in world.args
    world.change(model=resource()["spec"]["model"], cache=None)
    await world.settle()
    assert (world.phase, world.cluster.jobs) == ("Complete", {})
