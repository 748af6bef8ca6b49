"""Status from observed states: each cause in one word and in the cluster's own words."""

from dataclasses import replace

import pytest

from octavo_operator import status
from octavo_operator.autoscaling import Limit
from octavo_operator.causes import Cause
from octavo_operator.checkpoint import Checkpoint
from octavo_operator.manifests import DEPLOYMENT
from octavo_operator.observed import Observed, read_pod, read_workload
from octavo_operator.rollout import Phase, Rollout
from octavo_operator.spec import read_spec
from octavo_operator.status import Progress, QueueFigures, Telemetry
from octavo_operator.status_schema import STATUS_SCHEMA
from operator_samples import NOW, crashed, live_deployment, observed, pod, resource, unscheduled, waiting

SCALED = {"autoscaling": {"maxReplicas": 4}}


DONE = Rollout(Phase.COMPLETE, "r2", active="r2", words="all replicas have revision r2")


def describe(look, telemetry=None, blocked=(), rollout=DONE, now=NOW):
    telemetry = telemetry or Telemetry(desired=1)
    return status.describe(read_spec(look.resource), look, rollout, telemetry, blocked, now=now)


def conditions(document):
    return {item["type"]: item for item in document["conditions"]}


def of(*pods, parent=None, telemetry=None, blocked=(), rollout=DONE, **deployed):
    parent = parent or resource()
    look = observed(parent, *pods, deployed=live_deployment(parent, **deployed))
    return conditions(describe(look, telemetry, blocked, rollout))


NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."

CAUSES = [
    # pod status, reason, final, words
    (waiting("ImagePullBackOff", "not found"), "ImagePullFailed", True, "not found"),
    (waiting("ErrImagePull", "denied"), "ImagePullFailed", True, "denied"),
    (waiting("InvalidImageName", ""), "ImagePullFailed", True, "InvalidImageName"),
    (waiting("CreateContainerConfigError", 'secret "keys" not found'), "ConfigurationMissing", True, "keys"),
    (waiting("RunContainerError", "exec: octavo: not found"), "ContainerStartFailed", True, "octavo"),
    (crashed(reason="OOMKilled", code=137), "ContainerOOMKilled", True, "resources.limits.memory"),
    (crashed("ModelNotFound: /models/x does not exist"), "ModelNotFound", True, "/models/x does not exist"),
    (crashed("log line\nCheckpointInvalid: header is cut\n"), "CheckpointInvalid", True, "header is cut"),
    (crashed("Traceback: something"), "CrashLoop", True, "something"),
    (crashed(""), "CrashLoop", True, "kubectl logs --previous"),
    (unscheduled(NO_GPU), "InsufficientAccelerator", False, "3 Insufficient nvidia.com/gpu"),
    (unscheduled("0/1 nodes are available: 1 Insufficient memory."), "Unschedulable", False, "Insufficient memory"),
    (unscheduled('persistentvolumeclaim "models" not found'), "PvcNotFound", True, '"models"'),
    (unscheduled("pod has unbound immediate PersistentVolumeClaims"), "PvcPending", False, "no volume yet"),
]


@pytest.mark.parametrize(("state", "reason", "final", "words"), CAUSES, ids=[cause[1] for cause in CAUSES])
def test_a_cause_is_named_in_ready_and_progress(state, reason, final, words):
    found = of(pod(**state))
    assert found["Ready"]["status"] == "False"
    assert found["Ready"]["reason"] == reason
    assert words in found["Ready"]["message"]
    assert ("Stalled" in found, "Reconciling" in found) == (final, not final)
    assert found["Stalled" if final else "Reconciling"]["reason"] == reason


def test_model_causes_are_told_by_model_ready():
    assert of(pod(**crashed("ModelNotFound: no such path")))["ModelReady"]["reason"] == "ModelNotFound"
    assert of(pod(**waiting("ImagePullBackOff")))["ModelReady"]["status"] == "Unknown"
    assert of(pod(ready=True))["ModelReady"]["status"] == "True"


def test_an_evicted_pod_is_no_replica():
    evicted = pod(phase="Failed", reason="Evicted", message="low on disk")
    look = observed(resource(), evicted, pod("b", ready=True), deployed=live_deployment(resource()))
    assert describe(look)["replicas"] == 1


def test_serving_is_ready_and_quiet():
    found = of(pod(ready=True))
    assert found["Ready"]["status"] == "True"
    assert found["WorkloadAvailable"]["reason"] == "AllReplicasReady"
    assert not {"Stalled", "Reconciling"} & set(found)


def test_a_broken_rollout_is_ready_and_stalled():
    parent = resource()
    found = of(
        pod("old", ready=True), pod("new", **waiting("ImagePullBackOff", "nope")), parent=parent, updatedReplicas=1
    )
    assert found["Ready"]["status"] == "True"
    assert found["Stalled"]["reason"] == "ImagePullFailed"
    assert "Reconciling" not in found


def test_a_rollout_is_reconciling():
    assert of(pod(ready=True), updatedReplicas=0)["Reconciling"]["reason"] == "RollingOut"


def test_a_scale_change_is_reconciling():
    found = of(pod(ready=True), telemetry=Telemetry(desired=2), replicas=1)
    assert found["Reconciling"]["reason"] == "Scaling"
    assert found["WorkloadAvailable"]["status"] == "True"


def test_nothing_there_yet():
    parent = resource()
    found = conditions(describe(Observed(resource=parent)))
    assert found["Reconciling"]["reason"] == "Creating"
    assert found["Ready"]["reason"] == "Starting"


def test_zero_replicas():
    parent = resource(replicas=0)
    found = of(parent=parent, telemetry=Telemetry(desired=0), replicas=0, updatedReplicas=0)
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("True", "ScaledToZero")
    assert found["WorkloadAvailable"]["status"] == "False"
    assert not {"Stalled", "Reconciling"} & set(found)


def test_paused_is_said():
    parent = resource(paused=True)
    assert "paused" in of(pod(ready=True), parent=parent)["Ready"]["message"]


def test_pods_refused_by_admission():
    parent = resource()
    deployed = live_deployment(parent, conditions=[{"type": "ReplicaFailure", "status": "True", "message": "quota"}])
    look = Observed(resource=parent, children={DEPLOYMENT: deployed}, workload=read_workload(deployed))
    assert conditions(describe(look))["Stalled"]["reason"] == "PodsRefused"


def test_what_blocks_a_child_comes_first():
    blocked = [Cause("ForeignObject", "Service x belongs to someone else", final=True)]
    assert of(pod(**crashed("ModelNotFound: x")), blocked=blocked)["Stalled"]["reason"] == "ForeignObject"


@pytest.mark.parametrize(
    ("telemetry", "expected", "reason"),
    [
        (Telemetry(desired=1), "Unknown", "NoReadyReplicas"),
        (Telemetry(desired=1, ready=1, answered=1), "True", "AllReplicasReport"),
        (Telemetry(desired=2, ready=2, answered=1, no_data="b answered 500"), "False", "SomeReplicasSilent"),
        (Telemetry(desired=2, ready=2, answered=0, no_data="a gave no answer"), "False", "NoData"),
    ],
)
def test_metrics_available(telemetry, expected, reason):
    found = of(pod(ready=True), telemetry=telemetry)["MetricsAvailable"]
    assert (found["status"], found["reason"]) == (expected, reason)
    assert telemetry.no_data in found["message"]


@pytest.mark.parametrize("limited", list(Limit))
def test_scaling_limited_tells_what_limits(limited):
    found = of(pod(ready=True), parent=resource(**SCALED), telemetry=Telemetry(desired=1, limited=limited))
    assert found["ScalingLimited"]["status"] == "True"
    assert found["ScalingLimited"]["reason"] == limited.value


def test_scaling_limited_is_silent_where_octavo_does_not_scale():
    assert "ScalingLimited" not in of(pod(ready=True))


def test_the_time_of_a_condition_moves_with_its_status_only():
    parent = resource()
    parent["status"] = describe(observed(parent, pod(ready=True), deployed=live_deployment(parent)))
    later = "2031-01-01T00:00:00Z"
    look = observed(parent, pod(**waiting("ImagePullBackOff")), deployed=live_deployment(parent))
    found = conditions(describe(look, now=later))
    assert found["Ready"]["lastTransitionTime"] == later
    assert found["MonitoringConfigured"]["lastTransitionTime"] == NOW


def test_a_second_look_at_the_same_state_says_the_same():
    parent = resource(**SCALED)
    telemetry = Telemetry(desired=1, ready=1, answered=1, queue=QueueFigures(3, 4), load_seconds=2.345)
    first = describe(observed(parent, pod(ready=True), deployed=live_deployment(parent)), telemetry)
    parent["status"] = first
    look = observed(parent, pod(ready=True), deployed=live_deployment(parent))
    again = describe(look, telemetry, now="2031-01-01T00:00:00Z")
    assert again == first
    assert first["queue"] == {"waiting": 3, "running": 4}
    limited = Telemetry(desired=1, ready=1, answered=1, queue=QueueFigures(3, 4, "kv", "4 wait for blocks."))
    assert describe(look, limited)["queue"] == {
        "waiting": 3, "running": 4, "limiter": "kv", "message": "4 wait for blocks."
    }  # fmt: skip
    assert first["replicaSummary"] == "1/1"
    assert first["url"] == "http://assistant.team.svc:8000"
    assert first["selector"] == "octavo.dev/service=assistant"


def test_an_unreadable_spec_keeps_what_was_known():
    parent = resource() | {"status": {"readyReplicas": 2, "conditions": []}}
    document = status.unreadable(parent, "SpecUnreadable", "spec.x: no", NOW)
    assert document["readyReplicas"] == 2
    assert conditions(document)["Stalled"]["reason"] == "SpecUnreadable"


def test_a_terminating_pod_is_not_ready():
    going = pod(ready=True)
    going["metadata"]["deletionTimestamp"] = NOW
    assert not read_pod(going).ready
    assert not read_pod(going).starting


CHECKING = Rollout(Phase.CHECKING, "r3", active="r2", words="revision r3 is being checked")
REFUSAL = Cause("ModelNotFound", "hf://org/name has no revision main", final=True)
REFUSED = Rollout(Phase.REFUSED, "r3", active="r2", words="revision r3 does not pass its check", cause=REFUSAL)
FETCHING = Rollout(Phase.LOADING, "r3", active="r2", words="the model is being fetched")
REMOTE = {"model": {"source": "hf://org/name"}}


@pytest.mark.parametrize(
    ("rollout", "kind", "reason"),
    [
        (CHECKING, "Reconciling", "CheckingRevision"),
        (FETCHING, "Reconciling", "FetchingModel"),
        (REFUSED, "Stalled", "ModelNotFound"),
    ],
)
@pytest.mark.parametrize("serving", [True, False])
def test_a_revision_on_its_way_is_told_whether_or_not_another_serves(rollout, kind, reason, serving):
    pods = [pod(ready=True)] if serving else []
    found = of(*pods, parent=resource(**REMOTE), rollout=rollout)
    assert found[kind]["reason"] == reason
    assert found["Ready"]["status"] == ("True" if serving else "False")
    assert serving or found["Ready"]["reason"] == reason


def test_paused_waits_and_is_neither_under_way_nor_stalled():
    paused = Rollout(Phase.PAUSED, "r3", active="r2", words="spec.paused is true: changes wait")
    found = of(pod(ready=True), parent=resource(paused=True), rollout=paused)
    assert not {"Stalled", "Reconciling"} & set(found)


MODEL_PHASES = [
    # rollout, pods, phase
    (CHECKING, [], "Resolving"),
    (FETCHING, [], "Fetching"),
    (REFUSED, [pod(ready=True)], "Failed"),
    (DONE, [pod(ready=True)], "Ready"),
    (DONE, [pod()], "Loading"),
    (DONE, [pod(**unscheduled(NO_GPU))], "Pending"),
    (DONE, [], "Pending"),
    (DONE, [pod(**crashed("CheckpointInvalid: header is cut"))], "Failed"),
]


@pytest.mark.parametrize(("rollout", "pods", "phase"), MODEL_PHASES)
def test_how_far_the_model_is(rollout, pods, phase):
    parent = resource(**REMOTE)
    look = observed(parent, *pods, deployed=live_deployment(parent))
    assert describe(look, rollout=rollout)["model"]["phase"] == phase


def test_what_is_known_of_the_model_is_told_and_nothing_else():
    parent = resource(**REMOTE)
    look = observed(parent, deployed=live_deployment(parent))
    found = replace(FETCHING, checkpoint=Checkpoint("c0ffee", 1000, 3))
    telemetry = Telemetry(desired=1, progress=Progress(420, 1000))
    assert describe(look, telemetry, rollout=found)["model"] == {
        "source": "hf://org/name",
        "phase": "Fetching",
        "revision": "c0ffee",
        "bytes": 1000,
        "percent": 42,
    }
    assert describe(look, rollout=CHECKING)["model"] == {"source": "hf://org/name", "phase": "Resolving"}


@pytest.mark.parametrize(
    ("done", "total", "percent"), [(0, 0, None), (5, 0, None), (1, 3, 33), (9, 3, 100), (3, 3, 100)]
)
def test_percents_are_whole_and_bounded(done, total, percent):
    assert Progress(done, total).percent == percent


def test_the_rollout_is_told():
    look = observed(resource(), pod(ready=True), deployed=live_deployment(resource()))
    assert describe(look, rollout=CHECKING)["rollout"] == {
        "revision": "r3",
        "active": "r2",
        "phase": "Checking",
        "message": "revision r3 is being checked",
    }


EFFECTIVE = [
    ({}, {"minReplicas": 1, "maxReplicas": 1, "modelPath": "/models/smollm2", "rollout": "Auto"}),
    ({"replicas": 0}, {"minReplicas": 0, "maxReplicas": 0}),
    (SCALED, {"minReplicas": 1, "maxReplicas": 4, "targetQueueDepth": 4, "objectiveSeconds": 30}),
    ({"startupSeconds": 77, "drainSeconds": 9}, {"startupSeconds": 77, "drainSeconds": 9}),
    ({"engine": {"image": "mine:1"}}, {"image": "mine:1"}),
]


@pytest.mark.parametrize(("spec", "values"), EFFECTIVE)
def test_values_in_use_are_shown(spec, values):
    look = observed(resource(**spec))
    shown = describe(look)["effective"]
    assert shown.items() >= values.items()


def test_an_external_autoscaler_keeps_its_bounds_to_itself():
    shown = describe(observed(resource(replicas=2, autoscaling={"mode": "External"})))["effective"]
    assert not {"minReplicas", "maxReplicas", "targetQueueDepth"} & set(shown)


def test_the_image_in_use_is_the_templates():
    """An operator with a newer default image has restarted nothing, and says what runs."""
    engine = {"name": "engine", "image": "octavo-engine:0.1", "args": ["--model=/models/elsewhere", "--port=1"]}
    rollout = replace(DONE, template={"spec": {"containers": [engine]}})
    shown = describe(observed(resource()), rollout=rollout)["effective"]
    assert (shown["image"], shown["modelPath"]) == ("octavo-engine:0.1", "/models/elsewhere")


def test_a_pod_that_ended_is_a_matter_only_while_replicas_are_missing():
    evicted = pod("old", phase="Failed", reason="Evicted", message="low on memory")
    assert of(evicted, pod("new"))["Ready"]["reason"] == "Evicted"
    assert not {"Stalled", "Reconciling"} & set(of(evicted, pod("new", ready=True)))


def test_what_is_wrong_with_a_pod_now_comes_before_what_ended_another():
    evicted = pod("a", phase="Failed", reason="Evicted", message="low on memory")
    assert of(evicted, pod("b", **unscheduled(NO_GPU)))["Ready"]["reason"] == "InsufficientAccelerator"


def test_every_field_of_status_is_described_and_bounded():
    def walk(node, path):
        assert node.get("description"), path
        kind = node.get("type")
        if kind == "object":
            for name, inner in node["properties"].items():
                walk(inner, f"{path}.{name}")
        elif kind == "array":
            assert "maxItems" in node, path
            walk(node["items"], path)
        elif kind == "string":
            assert {"maxLength", "enum", "format"} & set(node), path
        elif path not in GENERATIONS:
            assert "minimum" in node, path

    walk(STATUS_SCHEMA, "status")


GENERATIONS = {"status.observedGeneration", "status.conditions.observedGeneration"}


def test_all_that_is_written_has_a_place_in_the_schema():
    def fits(value, node, path):
        if node["type"] == "object":
            assert set(value) <= set(node["properties"]), path
            for name, inner in value.items():
                fits(inner, node["properties"][name], f"{path}.{name}")
        elif node["type"] == "array":
            for item in value:
                fits(item, node["items"], path)
        elif "enum" in node:
            assert value in node["enum"], path

    parent = resource(**SCALED, **REMOTE)
    look = observed(parent, pod(ready=True), deployed=live_deployment(parent))
    telemetry = Telemetry(
        desired=2,
        ready=1,
        queue=QueueFigures(3, 4),
        load_seconds=2.0,
        progress=Progress(1, 2),
        decisions=({"time": NOW, "fromReplicas": 1, "toReplicas": 2, "reason": "QueueGrowth", "message": "x"},),
    )
    for phase in Phase:
        rollout = Rollout(phase, "r3", active="r2", words="x", checkpoint=Checkpoint("c0ffee", 1000, 3))
        fits(describe(look, telemetry, rollout=rollout), STATUS_SCHEMA, "status")


def test_words_of_others_are_clean_and_bounded():
    found = of(pod(**crashed("token=MARKER " + "x" * 9000)))
    assert "MARKER" not in str(found)
    assert all(len(item["message"]) <= 2048 for item in found.values())
