"""Causes read from what a real cluster said of pods, Deployments and Jobs in trouble (`cause_recorder` recorded it)."""

import json
from pathlib import Path

import pytest

from octavo_operator.causes import (
    ENGINE_REASONS,
    RUN_REASONS,
    UNSCHEDULABLE,
    Cause,
    ended_in_silence,
    job_cause,
    pod_cause,
    unexplained,
    workload_cause,
)

RECORDED = Path(__file__).parent / "recorded"


def recorded(name):
    return json.loads((RECORDED / f"{name}.json").read_text())


def cause_of(document):
    if "pod" in document:
        return pod_cause(document["pod"], document["events"])
    if "job" in document:
        return job_cause(document["job"], [pod_cause(pod) for pod in document["pods"]], document["events"])
    return workload_cause(document["deployment"])


EXPECTED = {
    # case: reason, waiting does not help, what to do, the cluster's words
    "image-pull": ("ImagePullFailed", True, "correct engine.image", "lookup registry.invalid"),
    "image-back-off": ("ImagePullFailed", True, "correct engine.image", "lookup registry.invalid"),
    "image-never": ("ImagePullFailed", True, "correct engine.image", "pull policy of Never"),
    "image-name": ("ImagePullFailed", True, "not an image reference", "must be lowercase"),
    "other-processor": ("WrongArchitecture", True, "kubernetes.io/arch", "exec format error"),
    "no-program": ("ContainerStartFailed", True, "must be an Octavo engine", "executable file not found"),
    "root-image": ("ImageRunsAsRoot", True, "numeric USER", "image will run as root"),
    "crash-first": ("CrashLoop", False, "kubectl logs --previous", "Traceback: it broke"),
    "crash-loop": ("CrashLoop", True, "kubectl logs --previous", "Traceback: it broke"),
    "exit-zero-loop": ("CrashLoop", True, "kubectl logs --previous", "it left no message"),
    "engine-words": ("ModelNotFound", True, "", "/models/x does not exist"),
    "out-of-memory": ("ContainerOOMKilled", True, "raise resources.limits.memory", ""),
    "loader-words": ("ModelAccessDenied", True, "", "wants a token"),
    "no-accelerator": ("InsufficientAccelerator", False, "add a GPU node", "1 Insufficient nvidia.com/gpu"),
    "no-cpu": ("Unschedulable", False, "lower resources.requests.cpu", "1 Insufficient cpu"),
    "no-memory": ("Unschedulable", False, "lower resources.requests.memory", "1 Insufficient memory"),
    "no-label": ("Unschedulable", False, "correct template.nodeSelector", "didn't match Pod's node affinity/selector"),
    "tainted": ("Unschedulable", False, "template.tolerations", "untolerated taint"),
    "no-claim": ("PvcNotFound", True, "create it", '"nowhere" not found'),
    "claim-pending": ("PvcPending", False, "kubectl describe pvc", "unbound immediate"),
    "no-secret": ("ConfigurationMissing", True, "create the Secret", 'secret "nokeys" not found'),
    "no-key": ("ConfigurationMissing", True, "or its key", "non-existent secret key: absent"),
    "no-configmap": ("ConfigurationMissing", True, "ConfigMap", 'configmap "nowhere" not found'),
    "no-secret-in-env": ("ConfigurationMissing", True, "create what the pod refers to", 'secret "nokeys" not found'),
    "no-runtime": ("PodSandboxFailed", False, "template.runtimeClassName", 'no runtime for "missing"'),
    "too-slow-to-start": ("StartupTimeout", True, "raise startupSeconds", ""),
    "stopped-answering": ("LivenessFailed", False, "kubectl logs --previous for its stacks", ""),
    "not-answering": ("NotAnswering", False, "does not answer", "Readiness probe failed"),
    "deadline": ("DeadlineExceeded", True, "see its log", "longer than the specified deadline"),
    "node-refuses": ("NodeAffinity", False, "template.nodeSelector", "Predicate NodeAffinity failed"),
    "evicted": ("Evicted", False, "set requests", "low on resource: memory"),
    "node-silent": ("NodeNotReady", False, "kubectl describe node ghost", ""),
    "quota": ("QuotaExceeded", True, "raise it", "exceeded quota: none"),
    "refused": ("PodsRefused", True, "admission policy", "hostNetwork=true"),
    "no-progress": ("StartupTimeout", True, "startupSeconds", ""),
    "job-failed": ("ModelNotFound", True, "", "no such path"),
    "job-silent": ("CrashLoop", True, "kubectl logs", "it left no message"),
    "job-deadline": ("DeadlineExceeded", True, "kubectl logs job/job-deadline", "longer than specified deadline"),
    "job-quota": ("QuotaExceeded", True, "raise it", "exceeded quota: none"),
}
QUIET = {"loader-runs"}


def test_every_recording_is_expected_and_every_expectation_recorded():
    assert {path.stem for path in RECORDED.glob("*.json")} == set(EXPECTED) | QUIET


@pytest.mark.parametrize("name", EXPECTED)
def test_trouble_is_named_with_what_to_do_and_the_clusters_words(name):
    reason, final, remedy, words = EXPECTED[name]
    cause = cause_of(recorded(name))
    assert cause is not None
    assert (cause.reason, cause.final) == (reason, final)
    assert remedy in cause.message
    assert words in cause.message
    assert not words or cause.message.index(remedy) <= cause.message.index(words)


@pytest.mark.parametrize("name", sorted(QUIET))
def test_a_pod_that_only_needs_time_has_no_cause(name):
    assert cause_of(recorded(name)) is None


TOLD_BY_EVENTS = {"no-secret", "no-key", "no-configmap", "no-runtime", "too-slow-to-start", "stopped-answering"}


@pytest.mark.parametrize("name", sorted(TOLD_BY_EVENTS | {"not-answering"}))
def test_events_are_asked_for_where_status_is_silent(name):
    document = recorded(name)
    assert unexplained(document["pod"])
    without = pod_cause(document["pod"])
    assert without is None or without.reason != EXPECTED[name][0]


@pytest.mark.parametrize("name", ["image-pull", "no-cpu", "no-claim", "loader-words", "evicted", "node-silent"])
def test_no_events_are_asked_for_where_status_tells(name):
    assert not unexplained(recorded(name)["pod"])


def test_failing_and_backing_off_say_the_same_of_an_image():
    """The kubelet alternates between them: status must not."""
    assert cause_of(recorded("image-pull")) == cause_of(recorded("image-back-off"))


def test_events_of_an_earlier_state_do_not_count():
    """The Secret came, the pod has its volumes and starts: the Event about it stays for an hour."""
    document = recorded("no-secret")
    document["pod"]["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True"},
        {"type": "PodReadyToStartContainers", "status": "True"},
        {"type": "Ready", "status": "False"},
    ]
    running = {"name": "engine", "ready": False, "started": False, "state": {"running": {}}}
    document["pod"]["status"] |= {"phase": "Running", "containerStatuses": [running]}
    assert cause_of(document) is None


def test_the_newest_event_with_a_meaning_counts():
    document = recorded("no-secret")
    (old,) = [event for event in document["events"] if event["reason"] == "FailedMount"][:1]
    new = old | {"lastTimestamp": "2999-01-01T00:00:00Z", "message": "references non-existent secret key: k"}
    later = {"reason": "Scheduled", "message": "assigned", "lastTimestamp": "2999-01-02T00:00:00Z"}
    found = pod_cause(document["pod"], [later, old, new])
    assert found is not None
    assert "non-existent secret key: k" in found.message


def status(**more):
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]
    return {"metadata": {"name": "x"}, "spec": {}, "status": {"phase": "Running", "conditions": conditions} | more}


def waiting(reason, message, image="registry.example/engine:1"):
    state = {"waiting": {"reason": reason, "message": message}}
    return status(containerStatuses=[{"name": "engine", "image": image, "state": state}])


def ended(message="", code=1, reason="Error", restarts=0):
    state = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    return status(containerStatuses=[{"name": "engine", "state": state, "restartCount": restarts}])


def unscheduled(words):
    condition = {"type": "PodScheduled", "status": "False", "message": words}
    return status(phase="Pending", conditions=[condition])


# What this machine's cluster cannot be made to say; the words are Kubernetes' and containerd's own.
SPOKEN = [
    (waiting("ErrImagePull", "pull access denied, authorization failed"), "ImagePullFailed", "imagePullSecrets"),
    (waiting("ErrImagePull", "401 Unauthorized"), "ImagePullFailed", "imagePullSecrets"),
    (waiting("ErrImagePull", "registry.example/engine:1: not found"), "ImagePullFailed", "no such image or tag"),
    (
        waiting("ErrImagePull", "no match for platform in manifest: not found"),
        "WrongArchitecture",
        "kubernetes.io/arch",
    ),
    (
        waiting("RunContainerError", "failed to create containerd task: exec format error"),
        "WrongArchitecture",
        "another processor",
    ),
    (ended("EngineStuck: no step has ended for 120 s"), "EngineStuck", "no step"),
    (ended("ModelSourceUnreachable: https://hub.example does not answer"), "ModelSourceUnreachable", "hub.example"),
    (ended("DiskFull: 3 GB are needed, 1 GB is there"), "DiskFull", "3 GB"),
    (unscheduled('persistentvolumeclaim "models" is being deleted.'), "PvcNotFound", "create it anew"),
    (unscheduled("0/3 nodes are available: 3 Too many pods."), "Unschedulable", "full of pods"),
    (unscheduled("0/3 nodes are available: 3 node(s) were unschedulable."), "Unschedulable", "cordoned"),
    (
        unscheduled("0/3 nodes are available: 3 node(s) had volume node affinity conflict."),
        "Unschedulable",
        "bound to a node",
    ),
    (
        unscheduled("0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }."),
        "Unschedulable",
        "does not answer",
    ),
    (status(phase="Failed", reason="UnexpectedAdmissionError", message="no devices"), "NodeRefusedPod", "no devices"),
    (status(phase="Failed", reason="OutOfnvidia.com/gpu", message="Node: 0"), "NodeRefusedPod", "OutOfnvidia.com/gpu"),
    (status(phase="Failed", reason="Terminated", message="node shutdown"), "Terminated", "another replica"),
    *(
        (status(phase="Failed", reason="Evicted", message=message), "Evicted", "resources.limits.ephemeral-storage")
        for message in (
            'Usage of EmptyDir volume "cache" exceeds the limit "4Gi". ',
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
            'Container engine exceeded its local ephemeral storage limit "1Gi". ',
        )
    ),
    (
        status(phase="Failed", reason="Evicted", message="Container engine was using 9Gi, which exceeds its request"),
        "Evicted",
        "set requests",
    ),
]


@pytest.mark.parametrize(("pod", "reason", "words"), SPOKEN)
def test_words_that_are_not_recorded(pod, reason, words):
    cause = pod_cause(pod)
    assert cause is not None
    assert cause.reason == reason
    assert words in cause.message


@pytest.mark.parametrize(
    "pod",
    [case[0] for case in SPOKEN]
    + [recorded(n)["pod"] for n in EXPECTED if "job" not in n and n not in ("quota", "refused", "no-progress")],
)
def test_a_reason_is_one_word_that_a_condition_may_have(pod):
    cause = pod_cause(pod, [])
    assert cause is None or cause.reason.isalnum()


def test_what_passes_by_itself_is_not_final():
    assert not pod_cause(ended("ModelSourceUnreachable: no route")).final
    assert not pod_cause(ended("EngineStuck: no step has ended")).final
    assert pod_cause(ended("EngineStuck: no step has ended", restarts=2)).final


def test_a_log_line_that_looks_like_a_reason_is_none():
    assert pod_cause(ended("ConnectionError: x\nTraceback")).reason == "CrashLoop"


def test_credentials_of_others_do_not_travel():
    cause = pod_cause(ended("ModelNotFound: https://user:MARKER@hub.example/m?token=MARKER answered 404"))
    assert "MARKER" not in cause.message
    assert "hub.example" in cause.message


def test_an_older_kubelet_without_the_sandbox_condition_is_understood():
    document = recorded("no-secret")
    live = document["pod"]
    live["status"]["conditions"] = [
        item for item in live["status"]["conditions"] if item["type"] != "PodReadyToStartContainers"
    ]
    assert unexplained(live)
    assert cause_of(document).reason == "ConfigurationMissing"


EVICTED = {
    "reason": "Evicted",
    "message": "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ",
}


def test_a_replica_that_was_evicted_and_ended_in_good_order_is_told_by_events():
    live = status(phase="Succeeded")
    assert ended_in_silence(live)
    started = {"reason": "Started", "message": "Container started"}
    cause = pod_cause(live, [started, EVICTED])
    assert (cause.reason, cause.final) == ("Evicted", False)
    assert "resources.limits.ephemeral-storage" in cause.message
    assert pod_cause(live, [started]) is None


@pytest.mark.parametrize(
    "live",
    [
        status(phase="Running"),
        status(phase="Succeeded") | {"spec": {"restartPolicy": "Never"}},
        status(phase="Succeeded")
        | {"metadata": {"name": "p", "uid": "u", "deletionTimestamp": "2030-01-01T00:00:00Z"}},
    ],
    ids=["runs", "a Job's", "deleted"],
)
def test_what_ends_as_it_should_is_asked_nothing(live):
    assert not ended_in_silence(live)
    assert pod_cause(live, [EVICTED]) is None


def test_a_pod_that_goes_is_nobodys_trouble():
    live = recorded("no-secret")["pod"]
    live["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    assert not unexplained(live)


def test_a_job_that_may_still_pass_tells_what_its_pod_waits_for():
    waits = Cause("InsufficientMemory", "x", final=False)
    assert job_cause({"metadata": {"name": "j"}, "status": {}}, [None, waits]) == waits


def test_a_job_without_pods_and_events_has_said_nothing():
    assert job_cause({"metadata": {"name": "j"}, "status": {}}, []) is None


def test_every_reason_is_in_the_documentation():
    documented = (Path(__file__).parents[2] / "docs" / "OPERATOR.md").read_text()
    reasons = {case[0] for case in EXPECTED.values()} | {case[1] for case in SPOKEN}
    for reason in sorted(reasons | {*ENGINE_REASONS, *RUN_REASONS, *UNSCHEDULABLE}):
        assert f"`{reason}`" in documented, reason
