"""A whole operator in one process, before a small API server: how little it asks, and that late events do no harm."""

import asyncio
import json
import random
from collections import Counter
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from octavo_operator import names, work_queue
from octavo_operator.cluster import Cluster
from octavo_operator.config import OperatorConfig
from octavo_operator.loops import Operator
from octavo_operator.metrics import Metrics
from patience import PATIENCE_SECONDS
from small_api_server import SmallApiServer

CHILDREN = {"serviceaccounts", "networkpolicies", "deployments", "services", "poddisruptionbudgets", "configmaps"}
QUIET_SECONDS, LOOKS = 0.15, 5
"""Nothing has been asked for so long: longer than the test's rest of a key and its latest event. A process that stands
still for that time passes one of the looks."""


class Stage:
    """An operator, the API server, and how the events come."""

    def __init__(self, monkeypatch, delay, heartbeat_seconds=1000):
        monkeypatch.setattr(work_queue, "REST_SECONDS", 0.02)
        self.delay = delay
        self.server = SmallApiServer(self._tell)
        metrics = Metrics(CollectorRegistry())
        self.config = OperatorConfig(namespaces="team", heartbeat_seconds=heartbeat_seconds)
        self.cluster = Cluster(self.server, self.config, metrics)
        self.operator = Operator(self.config, self.cluster, None, metrics)

    def _tell(self, watched, body, gone):
        for pause in self.delay():
            asyncio.get_running_loop().call_later(pause, self.operator._told, watched, body, gone)

    @asynccontextmanager
    async def running(self):
        parts = [self.operator.resync(), self.operator.beat()]
        parts += [self.operator.queue.run_worker(self.operator.work) for _ in range(4)]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.quiet()
                self.server.calls.clear()
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def quiet(self):
        """Until nothing is asked for any more, the heartbeat's lists aside."""
        counts = [-1, 0]
        while len(set(counts)) > 1:
            counts = []
            for _ in range(LOOKS):
                await asyncio.sleep(QUIET_SECONDS / (LOOKS - 1))
                counts.append(sum(call.verb != "list" for call in self.server.calls))

    def settled(self, name):
        """Whether status tells of the present spec, and of its end."""
        found = self.server.objects[names.PLURAL, "team", name]
        status = found.get("status", {})
        phase = status.get("rollout", {}).get("phase")
        return (status.get("observedGeneration"), phase) == (found["metadata"]["generation"], "Complete")

    def alike(self, *services):
        """Whether services have the same children, and what they say of themselves is settled."""
        first, second = (json.dumps(self.children(name), sort_keys=True).replace(name, "NAME") for name in services)
        return first == second and all(self.settled(name) for name in services)

    def children(self, name="assistant"):
        """The specs of a service's children."""
        return {
            plural: item.get("spec")
            for (plural, _, _), item in self.server.objects.items()
            if any(owner["name"] == name for owner in item["metadata"].get("ownerReferences", ()))
        }


def at_once():
    return [0.0]


async def test_a_new_service_costs_nine_requests(monkeypatch):
    """One to be sure of its spec, six children, one status, one Event; 45 if each look asked for everything."""
    stage = Stage(monkeypatch, at_once)
    async with stage.running():
        stage.server.user_applies("assistant", replicas=0)
        await stage.quiet()
        made = Counter(f"{call.verb} {call.resource}" for call in stage.server.calls if call.verb != "list")
    assert set(stage.children()) == CHILDREN
    events = made.pop("create events")
    assert events == 1
    discovery = made.pop("get ", 0)
    assert discovery <= 1, "whether PodMonitors are known is asked once a minute for all"
    assert made == {
        "get inferenceservices": 1,
        **{f"patch {plural}": 1 for plural in CHILDREN},
        "patch inferenceservices/status": 1,
    }


async def test_a_changed_spec_costs_what_it_changes(monkeypatch):
    stage = Stage(monkeypatch, at_once)
    async with stage.running():
        stage.server.user_applies("assistant", replicas=0)
        await stage.quiet()
        stage.server.calls.clear()
        stage.server.user_applies("assistant", replicas=0, allowFrom=[{"podSelector": {}}])
        await stage.quiet()
        made = Counter(f"{call.verb} {call.resource}" for call in stage.server.calls if call.verb not in ("list",))
    made.pop("get ", 0)
    assert made.pop("patch inferenceservices/status") <= 2
    assert made == {"get inferenceservices": 1, "patch networkpolicies": 1}


async def test_foreign_objects_of_which_no_watch_tells_are_left_alone(monkeypatch):
    stage = Stage(monkeypatch, at_once)
    async with stage.running():
        theirs = {"metadata": {"name": "assistant"}, "spec": {"mine": True}}
        stage.server._store(("services", "team", "assistant"), theirs)
        stage.server.user_applies("assistant", replicas=0)
        await stage.quiet()
        found = stage.server.objects
    assert found["services", "team", "assistant"]["spec"] == {"mine": True}
    conditions = {item["type"]: item for item in found[names.PLURAL, "team", "assistant"]["status"]["conditions"]}
    assert conditions["Stalled"]["reason"] == "ForeignObject"
    assert set(stage.children()) == CHILDREN - {"services"}


@pytest.mark.parametrize("seed", range(6))
async def test_late_lost_and_doubled_events_end_in_the_same_children(monkeypatch, seed):
    chance = random.Random(seed)
    stage = Stage(monkeypatch, lambda: [chance.random() * 0.1 for _ in range(chance.choice([0, 1, 1, 2, 3]))], 0.5)
    async with stage.running():
        for number in range(12):
            name = chance.choice(["assistant", "other"])
            place = ("deployments", "team", name)
            if chance.random() < 0.2 and (names.PLURAL, "team", name) in stage.server.objects:
                stage.server.delete(names.PLURAL, name)
            elif chance.random() < 0.3 and place in stage.server.objects:
                stage.server.meddle("deployments", name, replicas=99)
            else:
                stage.server.user_applies(name, replicas=number % 3, drainSeconds=chance.choice([5, 6]))
            await asyncio.sleep(chance.random() * 0.05)
        for name in ("assistant", "other", "twin"):
            stage.server.user_applies(name, replicas=2, drainSeconds=7)
        while not (stage.settled("twin") and stage.alike("assistant", "twin") and stage.alike("other", "twin")):
            await asyncio.sleep(0.02)  # what no event told is found by heartbeats, one step after the other
    owners = {
        item["metadata"]["uid"] for (plural, _, _), item in stage.server.objects.items() if plural == names.PLURAL
    }
    for (plural, _, _), item in stage.server.objects.items():
        for owner in item["metadata"].get("ownerReferences", ()):
            assert owner["uid"] in owners, f"an orphan: {plural}"
