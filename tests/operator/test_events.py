"""Events: what is told, how often, and that none of it can fail a reconcile."""

import asyncio

import pytest

from octavo_operator.errors import Refused, Retryable
from octavo_operator.events import EVENTS_PER_SERVICE, REPEAT_SECONDS, Recorder, event
from octavo_operator.manifests import DEPLOYMENT, SERVICE
from octavo_operator.notes import Note, changes, left_alone, put_back
from octavo_operator.reconcile import SILENT_SECONDS, TOLD_SECONDS
from operator_samples import NOW, pod, resource
from operator_world import KEY
from operator_world import World as OperatorWorld


class Board:
    """Keeps what is written; fails while `error` is set."""

    def __init__(self):
        self.events = []
        self.error = None

    async def create_event(self, event):
        if self.error:
            raise self.error
        self.events.append(event)

    @property
    def told(self):
        return [(item["reason"], item["message"]) for item in self.events]


class World:
    def __init__(self):
        self.board = Board()
        self.now = 0.0
        self.recorder = Recorder(self.board, lambda: self.now, lambda: NOW, "operator-1")

    async def tell(self, *notes, name="assistant"):
        parent = resource(name)
        parent["metadata"]["uid"] = f"uid-{name}"
        await self.recorder.tell(parent, notes)


HAPPENS = Note("DriftCorrected", "Service x: spec.selector was changed", warning=True)
HOLDS = Note("AdditionsKept", "Service x: others set metadata.labels.theirs", standing=True)


async def test_the_same_thing_is_told_once_an_hour():
    world = World()
    for world.now in (0.0, 10.0, REPEAT_SECONDS - 1):
        await world.tell(HAPPENS)
    assert len(world.board.events) == 1
    world.now = REPEAT_SECONDS
    await world.tell(HAPPENS)
    assert len(world.board.events) == 2


async def test_what_holds_is_told_again_only_after_it_was_gone_for_an_hour():
    world = World()
    for step in range(30):
        world.now = step * REPEAT_SECONDS / 2
        await world.tell(HOLDS)
    assert len(world.board.events) == 1
    world.now += REPEAT_SECONDS
    await world.tell(HOLDS)
    assert len(world.board.events) == 2


async def test_another_message_and_another_service_are_another_thing():
    world = World()
    await world.tell(HAPPENS, Note("DriftCorrected", "another field", warning=True))
    await world.tell(HAPPENS, name="other")
    assert len(world.board.events) == 3


async def test_a_storm_ends_at_the_hours_limit():
    world = World()
    for number in range(500):
        world.now = number * 1.0
        await world.tell(Note("CrashLoop", f"crash {number}", warning=True))
    assert len(world.board.events) == EVENTS_PER_SERVICE
    await world.tell(HAPPENS, name="other")
    assert len(world.board.events) == EVENTS_PER_SERVICE + 1


async def test_memory_is_bounded_by_services():
    world = World()
    for number in range(3000):
        await world.tell(HAPPENS, name=f"service-{number}")
    assert len(world.recorder._told) == 2000


@pytest.mark.parametrize("error", [Refused("forbidden", 403), Retryable("no answer")])
async def test_an_event_that_cannot_be_written_fails_nothing(error):
    world = World()
    world.board.error = error
    await asyncio.wait_for(world.tell(HAPPENS, HOLDS), 60)
    assert world.board.events == []


def test_the_event_points_at_the_resource():
    made = event(resource(), Note("Scaled", "1 -> 2"), NOW, "operator-1")
    assert made["involvedObject"]["uid"] == resource()["metadata"]["uid"]
    assert made["metadata"]["namespace"] == "team"
    assert (made["type"], made["firstTimestamp"], made["count"]) == ("Normal", NOW, 1)


def test_a_long_message_with_a_credential_fits_and_is_clean():
    made = event(resource(), Note("CrashLoop", "token=MARKER " + "x" * 5000), NOW, "operator-1")
    assert len(made["message"].encode()) <= 1024
    assert "MARKER" not in str(made)


def test_a_very_long_name_still_makes_a_valid_event_name():
    made = event(resource("a" * 253), HAPPENS, NOW, "operator-1")
    assert len(made["metadata"]["generateName"]) + 5 <= 253


def condition(kind, status="True", reason="Because", message="words"):
    return {"type": kind, "status": status, "reason": reason, "message": message}


def status(*conditions, **more):
    return {"conditions": list(conditions)} | more


DECISION = {"time": NOW, "fromReplicas": 1, "toReplicas": 2, "reason": "QueueGrowth", "message": "9 waiting"}
LATER = DECISION | {"time": "2030-01-01T00:01:00Z", "fromReplicas": 2, "toReplicas": 1, "message": "idle"}

TRANSITIONS = [
    # before, after, reasons told
    (status(), status(), []),
    (status(), status(condition("Stalled", reason="ImagePullFailed")), ["ImagePullFailed"]),
    (
        status(condition("Stalled", reason="ImagePullFailed")),
        status(condition("Stalled", reason="ModelNotFound")),
        ["ModelNotFound"],
    ),
    (status(condition("Stalled", reason="A")), status(condition("Stalled", reason="A", message="other words")), []),
    (status(condition("Stalled", reason="ImagePullFailed")), status(), ["Recovered"]),
    (status(), status(condition("ModelReady"), loadSeconds=2.5, modelName="m"), ["ModelLoaded"]),
    (status(condition("ModelReady")), status(condition("ModelReady")), []),
    (status(condition("Ready")), status(condition("Ready", "False", "CrashLoop")), ["NoLongerServing"]),
    (status(), status(scaling={"decisions": [DECISION]}), ["ScaledUp"]),
    (status(scaling={"decisions": [DECISION]}), status(scaling={"decisions": [LATER, DECISION]}), ["ScaledDown"]),
    (status(), status(scaling={"decisions": [LATER, DECISION]}), ["ScaledUp", "ScaledDown"]),
    (status(), status(rollout={"phase": "Checking", "revision": "a1"}), ["RolloutChecking"]),
    (
        status(rollout={"phase": "Checking", "revision": "a1"}),
        status(rollout={"phase": "Refused", "revision": "a1", "message": "ModelNotFound: x"}),
        ["RolloutRefused"],
    ),
    (status(rollout={"phase": "A", "revision": "a1"}), status(rollout={"phase": "A", "revision": "a1"}), []),
]


@pytest.mark.parametrize(("before", "after", "reasons"), TRANSITIONS)
def test_only_differences_are_told(before, after, reasons):
    assert [note.reason for note in changes(before, after)] == reasons


def test_trouble_is_a_warning_and_a_count_set_to_zero_is_none():
    (stalled,) = changes(status(), status(condition("Stalled", reason="QuotaExceeded")))
    assert stalled.warning
    (stopped,) = changes(status(condition("Ready")), status(condition("Ready", "False", "ScaledToZero")))
    assert not stopped.warning


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("all replicas have revision a1", "all replicas have revision a1"),
        ("spec.paused is true: changes wait", "revision a1: spec.paused is true: changes wait"),
    ],
)
def test_a_rollout_names_its_revision_once(words, told):
    (note,) = changes(status(), status(rollout={"phase": "Rolling", "revision": "a1", "message": words}))
    assert note.message == told


def test_notes_about_children_name_child_and_field():
    assert "Service drift: spec.selector" in put_back("Service drift", "spec.selector").message
    kept = left_alone("Service drift", ["metadata.labels.theirs (kubectl-label)"])
    assert "metadata.labels.theirs" in kept.message
    assert kept.standing


async def told(world):
    return [(item["reason"], item["type"]) for item in world.cluster.events]


async def test_the_life_of_a_service_is_told_once():
    world = OperatorWorld(resource())
    await world.settle()
    world.cluster.pods = [pod(ready=True)]
    world.cluster.roll_out()
    await world.settle()
    await world.settle()
    reasons = [item["reason"] for item in world.cluster.events]
    assert reasons.count("ModelLoaded") == 1
    assert "RolloutComplete" in reasons
    assert len(reasons) == len(set(reasons))


async def test_a_restarted_operator_does_not_tell_it_again():
    world = OperatorWorld(resource())
    world.cluster.pods = [pod(ready=True)]
    await world.settle()
    world.cluster.events.clear()
    world.restart_operator()
    await world.settle()
    assert world.cluster.events == []


async def test_drift_is_put_back_with_the_fields_name():
    world = OperatorWorld(resource(replicas=2))
    await world.settle()
    world.cluster.events.clear()
    world.cluster.children[DEPLOYMENT]["spec"]["replicas"] = 7
    await world.settle()
    (event,) = world.cluster.events
    assert (event["reason"], event["type"]) == ("DriftCorrected", "Warning")
    assert "Deployment assistant: spec.replicas" in event["message"]


async def test_what_others_add_is_named_and_left_alone():
    world = OperatorWorld(resource())
    await world.settle()
    world.cluster.events.clear()
    theirs = {"manager": "kubectl-label", "fieldsV1": {"f:metadata": {"f:labels": {"f:team": {}}}}}
    world.cluster.children[SERVICE]["metadata"]["managedFields"] = [theirs]
    await world.settle()
    (event,) = world.cluster.events
    assert event["reason"] == "AdditionsKept"
    assert "Service assistant" in event["message"]
    assert "metadata.labels.team (kubectl-label)" in event["message"]


async def test_a_foreign_object_and_its_end_are_told():
    world = OperatorWorld(resource())
    world.cluster.children[SERVICE] = {
        "kind": "Service",
        "metadata": {"name": "assistant", "uid": "theirs"},
        "spec": {},
    }
    await world.settle()
    assert ("ForeignObject", "Warning") in await told(world)
    del world.cluster.children[SERVICE]
    await world.settle()
    assert ("Recovered", "Normal") in await told(world)


async def test_events_that_are_refused_stop_no_reconcile():
    world = OperatorWorld(resource())
    world.cluster.failing["event"] = Refused("POST events: 403 forbidden", 403)
    await world.settle()
    assert DEPLOYMENT in world.cluster.children


async def test_what_only_events_will_tell_is_looked_at_again():
    world = OperatorWorld(resource())
    await world.settle()
    assert await world.reconciler.reconcile(KEY) is None
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "PodReadyToStartContainers", "status": "False"},
    ]
    world.cluster.pods = [pod(phase="Pending", conditions=conditions)]
    assert await world.reconciler.reconcile(KEY) == SILENT_SECONDS
    killed = {"name": "engine", "lastState": {"terminated": {"exitCode": 0}}, "restartCount": 3}
    killed["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    scheduled = [{"type": "PodScheduled", "status": "True"}]
    world.cluster.pods = [pod(conditions=scheduled, containerStatuses=[killed])]
    assert await world.reconciler.reconcile(KEY) == TOLD_SECONDS, "a cause is known: another may follow, without haste"
