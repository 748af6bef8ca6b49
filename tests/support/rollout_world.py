"""Services with revisions, for tests of rollouts: one that serves, Jobs that pass, and the scheduler's words."""

from __future__ import annotations

import json

from octavo_operator.manifests import CONFIG_MAP
from octavo_operator.observed import Outcome, Purpose
from octavo_operator.revisions import read_history
from operator_samples import pod, resource
from operator_world import World

OLD, NEW, OTHER = {"maxNumSeqs": 4}, {"maxNumSeqs": 8}, {"maxNumSeqs": 16}
FULL = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: 0/1 nodes are available: "
CROWDED = FULL + "1 No preemption victims found for incoming pod."
TOO_LARGE = FULL + "1 Preemption is not helpful for scheduling."
HUB = {"source": "hf://org/name"}
FOUND = json.dumps({"revision": "c0ffee", "bytes": 1 << 30, "files": 3})


async def serving(**spec):
    """A service whose first revision serves."""
    world = World(resource(**({"engine": OLD} | spec)))
    await world.settle()
    if world.cluster.resource["spec"]["model"]["source"].startswith("hf://"):
        await passes(world, FOUND)
    world.cluster.roll_out()
    world.cluster.pods = [pod("old", ready=True)]
    await world.settle()
    assert world.phase == "Complete"
    return world


async def passes(world, words="", purpose=Purpose.PREFLIGHT):
    """The Job of a purpose ends well, and all that follows of it."""
    world.cluster.end_job(purpose, Outcome.PASSED, words)
    await world.settle()


def kept(world):
    return read_history(world.cluster.children[CONFIG_MAP]["data"])


def runs(world, engine):
    return f"--max-num-seqs={engine['maxNumSeqs']}" in world.args
