"""Status from observed states: each cause in one word and in the cluster's own words."""

import pytest

from octavo_operator import status
from octavo_operator.autoscaling import Limit
from octavo_operator.causes import Cause
from octavo_operator.manifests import DEPLOYMENT
from octavo_operator.observed import Observed, read_pod, read_workload
from octavo_operator.spec import read_spec
from octavo_operator.status import QueueFigures, Telemetry
from operator_samples import NOW, crashed, live_deployment, observed, pod, resource, unscheduled, waiting

SCALED = {"autoscaling": {"maxReplicas": 4}}


def describe(look, telemetry=None, blocked=()):
    return status.describe(read_spec(look.resource), look, telemetry or Telemetry(desired=1), blocked, NOW)


def conditions(document):
    return {item["type"]: item for item in document["conditions"]}


def of(*pods, parent=None, telemetry=None, blocked=(), **deployed):
    parent = parent or resource()
    look = observed(parent, *pods, deployed=live_deployment(parent, **deployed))
    return conditions(describe(look, telemetry, blocked))


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
    assert found["Ready"]["reason"] == "ScaledToZero"
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
    found = conditions(status.describe(read_spec(parent), look, Telemetry(desired=1), (), later))
    assert found["Ready"]["lastTransitionTime"] == later
    assert found["MonitoringConfigured"]["lastTransitionTime"] == NOW


def test_a_second_look_at_the_same_state_says_the_same():
    parent = resource(**SCALED)
    telemetry = Telemetry(desired=1, ready=1, answered=1, queue=QueueFigures(3, 4), load_seconds=2.345)
    first = describe(observed(parent, pod(ready=True), deployed=live_deployment(parent)), telemetry)
    parent["status"] = first
    again = status.describe(
        read_spec(parent),
        observed(parent, pod(ready=True), deployed=live_deployment(parent)),
        telemetry,
        (),
        "2031-01-01T00:00:00Z",
    )
    assert again == first
    assert first["queue"] == {"waiting": 3, "running": 4}
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
