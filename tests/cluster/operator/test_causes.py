"""Why a service is not ready: each cause on a real node, in a word within 30 s, without touching what serves."""

from __future__ import annotations

import json

import pytest

from cluster_tools import Kubectl, create, wait_for, wait_quiet
from fake_engine import end_fetches
from node import components, config
from operator_process import OperatorProcess, Services

READY = "/tmp/www/readyz"  # noqa: S108 - in the fake engine
REMOTE = {"source": "hf://fake/model"}
QUIET_SECONDS = 15.0
CASES = [
    ("no-claim", {"model": {"source": "pvc://nowhere/m"}}, "PvcNotFound", "nowhere"),
    ("no-image", {"engine": {"image": "localhost/none:1"}}, "ImagePullFailed", "localhost/none:1"),
    ("no-model", {"model": {"source": "file:///missing"}}, "ModelNotFound", "no such model"),
    ("crashes", {"model": {"source": "file:///crash"}}, "CrashLoop", "Traceback"),
    ("memory", {"model": {"source": "file:///memory"}, "resources": {"limits": {"memory": "32Mi"}}},
     "ContainerOOMKilled", "resources.limits.memory"),
    ("no-keys", {"auth": {"apiKeySecretRef": {"name": "nokeys", "key": "k"}}}, "ConfigurationMissing", '"nokeys"'),
    ("no-key", {"auth": {"apiKeySecretRef": {"name": "keys", "key": "absent"}}}, "ConfigurationMissing", "absent"),
    ("no-program", {"engine": {"image": "localhost/toolbox:1"}}, "ContainerStartFailed", "octavo"),
    ("no-token", {"model": REMOTE | {"tokenSecretRef": {"name": "notoken", "key": "t"}}},
     "ConfigurationMissing", '"notoken"'),
    ("no-such-model", {"model": {"source": "hf://fake/missing"}}, "ModelNotFound", "no such model"),
    ("no-cache", {"model": REMOTE, "cache": {"persistentVolumeClaim": "nocache"}}, "PvcNotFound", '"nocache"'),
    ("claim-waits", {"model": {"source": "pvc://unbound/m"}}, "PvcPending", "kubectl describe pvc"),
    ("quota", {"resources": {"limits": {"example.com/rare": "1"}}}, "QuotaExceeded", "exceeded quota"),
    ("no-node", {"template": {"nodeSelector": {"no": "where"}}}, "Unschedulable", "node"),
    ("too-big", {"resources": {"requests": {"memory": "900Gi"}}}, "Unschedulable", "Insufficient memory"),
    ("too-fast", {"resources": {"requests": {"cpu": "900"}}}, "Unschedulable", "lower resources.requests.cpu"),
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def all_applied(kubectl: Kubectl, shared: tuple[Services, object]) -> None:
    """All at once: one service's trouble delays no other."""
    services = shared[0]
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": {"requests": {"storage": "1Gi"}}}
    for kind, name, content in [
        ("Secret", "keys", {"stringData": {"present": "x", "marked": MARKER}}),
        ("PersistentVolumeClaim", "unbound", {"spec": claim}),
        ("ResourceQuota", "rare", {"spec": {"hard": {"requests.example.com/rare": "0"}}}),
    ]:
        create(kubectl, {"apiVersion": "v1", "kind": kind, "metadata": services.head(name), **content})
    services.apply_all({name: spec for name, spec, _, _ in CASES} | {"never": NEVER, "leaks": LEAKS})


MARKER = "m4rk3rOfASecretThatNobodyMayRead"
LEAKS = {
    "model": {"source": "file:///leaks"},
    "auth": {"apiKeySecretRef": {"name": "keys", "key": "marked"}},
}
NEVER = {"model": {"source": "file:///never"}, "startupSeconds": 30}


@pytest.mark.parametrize(("name", "spec", "reason", "words"), CASES, ids=[case[0] for case in CASES])
def test_a_cause_is_told(services: Services, name: str, spec: dict[str, object], reason: str, words: str) -> None:
    condition = services.wait_condition(name, "Ready", reason)
    assert words in condition["message"]
    assert condition["status"] == "False"


def test_a_broken_change_leaves_the_old_pods_and_is_undone_by_the_old_spec(
    kubectl: Kubectl, services: Services
) -> None:
    services.apply("survives")
    services.wait_ready("survives")
    before = services.pods("survives")
    services.apply("survives", model={"source": "file:///missing"})
    assert services.wait_condition("survives", "Stalled", "ModelNotFound")["status"] == "True"
    # On a busy machine a probe may come late, and the replica is not ready for a moment.
    wait_for(lambda: services.condition("survives", "Ready")["status"] == "True", "the old pod's answers")
    assert set(before) <= set(services.pods("survives"))
    services.apply("survives")
    wait_for(lambda: services.pods("survives") == before, "the old pods alone")
    wait_for(lambda: not services.condition("survives", "Stalled"), "the end of the trouble")


def test_a_replica_that_never_serves_is_told_when_its_time_is_over(services: Services) -> None:
    condition = services.wait_condition("never", "Stalled", "StartupTimeout")
    assert "raise startupSeconds" in condition["message"]


def test_a_replica_that_stops_answering_is_told(kubectl: Kubectl, services: Services) -> None:
    services.apply("mute")
    services.wait_ready("mute")
    (pod,) = services.pods("mute")
    kubectl("exec", "-n", services.namespace, pod, "--", "/bin/busybox", "rm", READY)
    condition = services.wait_condition("mute", "Ready", "NotAnswering")
    assert "Readiness probe failed" in condition["message"]
    kubectl("exec", "-n", services.namespace, pod, "--", "/bin/busybox", "touch", READY)
    services.wait_ready("mute")


@pytest.mark.soak
def test_what_was_missing_is_picked_up_when_it_comes(kubectl: Kubectl, services: Services) -> None:
    """Without a change of the spec; the kubelet tries again after up to two minutes."""
    services.wait_condition("no-keys", "Stalled", "ConfigurationMissing")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": services.head("nokeys"), "stringData": {"k": "x"}}
    create(kubectl, secret)
    services.wait_ready("no-keys")
    assert not services.condition("no-keys", "Stalled")


@pytest.mark.skipif(
    config.Settings.from_environment().kubeconfig is None
    and not components.measures_storage(config.Settings.from_environment().state),
    reason="this machine's kubelet cannot measure what pods write",
)
def test_a_replica_that_is_evicted_is_told_and_replaced(kubectl: Kubectl, services: Services) -> None:
    """By the kubelet itself, as it writes more than its limit. The next one fetches its model as long as we look."""
    limits = {"limits": {"ephemeral-storage": "4Mi"}}
    services.apply("writes", model={"source": "hf://fake/held"}, resources=limits)

    def serves() -> bool:
        end_fetches(kubectl, services.namespace, services.all_of("pods").values())
        return services.condition("writes", "Ready").get("status") == "True"

    wait_for(serves, "the first replica")
    (first,) = services.pods("writes")
    write = "/bin/busybox head -c 9000000 /dev/zero | /bin/busybox tr '\\0' x > /proc/1/fd/1"  # its log counts, too
    kubectl("exec", "-n", services.namespace, first, "--", "/bin/busybox", "sh", "-c", write)
    condition = services.wait_condition("writes", "Ready", "Evicted")
    assert "raise resources.limits.ephemeral-storage" in condition["message"]
    assert "exceed" in condition["message"], "the kubelet's own words"
    wait_for(serves, "the next replica")
    evicted = services.get("pod", first)
    assert evicted is not None
    # Its status alone would not tell: an engine that is told to end does so in good order.
    assert evicted["status"]["phase"] in ("Failed", "Succeeded")
    wait_for(lambda: not services.condition("writes", "Reconciling"), "the end of the trouble")


def test_services_in_trouble_cost_no_writes(services: Services) -> None:
    """Whatever is missing, waiting for it is quiet."""
    quiet = ["no-image", "no-claim", "quota", "no-such-model", "no-key", "no-cache"]

    def versions() -> dict[str, str]:
        found = services.all_of("osvc")
        return {name: found[name]["metadata"]["resourceVersion"] for name in quiet}

    wait_quiet(versions, QUIET_SECONDS, "the end of writes about services in trouble")


def test_no_credential_travels(kubectl: Kubectl, services: Services, operator: OperatorProcess) -> None:
    """An engine that prints a Secret's content as it dies: none of it reaches what Octavo writes."""
    condition = services.wait_condition("leaks", "Stalled", "CrashLoop")
    assert "hub.example" in condition["message"]
    kinds = "osvc,deployments,jobs,configmaps,services,networkpolicies,serviceaccounts,poddisruptionbudgets"
    # Status is written first, and then its Event.
    wait_for(lambda: "CrashLoop" in events_of(kubectl, services, "leaks"), "the Event about it")
    ours = kubectl("get", kinds, "-n", services.namespace, "-o", "json")
    events = json.loads(kubectl("get", "events", "-n", services.namespace, "-o", "json"))["items"]
    told = [item for item in events if item["source"].get("component") == "octavo-operator"]
    for text in (ours, json.dumps(told), operator.log()):
        assert MARKER not in text


def test_describe_shows_what_happened(kubectl: Kubectl, services: Services) -> None:
    wait_for(lambda: "ModelNotFound" in events_of(kubectl, services, "no-such-model"), "the Event")


def events_of(kubectl: Kubectl, services: Services, name: str) -> str:
    """What `kubectl describe` shows of them."""
    return kubectl("describe", "osvc", name, "-n", services.namespace).partition("Events:")[2]


def test_nothing_unexpected_was_logged(operator: OperatorProcess) -> None:
    assert operator.unexpected_lines() == []


INVALID = [
    ({"replicas": 2, "autoscaling": {"maxReplicas": 3}}, "replicas and autoscaling exclude each other"),
    ({"autoscaling": {"mode": "External"}}, "needs spec.replicas"),
    ({"replicas": 1, "autoscaling": {"mode": "External", "minReplicas": 2}}, "external autoscaler"),
    ({"autoscaling": {"minReplicas": 2}}, "needs maxReplicas"),
    ({"autoscaling": {"minReplicas": 5, "maxReplicas": 3}}, "must not exceed maxReplicas"),
    ({"replicas": 65}, "less than or equal to 64"),
    ({"model": {"source": "ftp://host/m"}}, "model.source must be"),
    ({"model": {"source": "https://user:pass@host/m"}}, "user or password"),
    ({"model": {"source": "hf://org/name", "endpoint": "http://a:b@host"}}, "without user, password or query"),
    ({"model": {"source": "file:///m", "revision": "main"}}, "remove it"),
    ({"model": {"source": "pvc://models/../etc"}}, "may not contain"),
    ({"model": {"source": "file:///m", "servedName": "a\nb"}}, "servedName"),
    ({"engine": {"extraArgs": ["--host=0.0.0.0"]}}, "may not set host"),
    ({"engine": {"extraArgs": ["--api-k=x"]}}, "may not set host"),
    ({"engine": {"extraArgs": ["serve"]}}, "--flag=value"),
    ({"engine": {"extraArgs": ["--x=a\n--host=b"]}}, "extraArgs"),
    ({"engine": {"env": [{"name": "LD_PRELOAD", "value": "x"}]}}, "remove this entry"),
    ({"engine": {"env": [{"name": "PYTHONPATH", "value": "x"}]}}, "remove this entry"),
    ({"engine": {"image": "a b"}}, "image"),
    ({"engine": {"maxModelLen": 1}}, "greater than or equal to 2"),
    ({"resources": {"limits": {"nvidia.com/gpu": 17}}}, "accelerators of one node"),
    ({"resources": {"limits": {"cpu": "lots"}}}, "limits"),
    ({"template": {"labels": {"octavo.dev/service": "x"}}}, "a prefix of your own"),
    ({"template": {"hostNetwork": True}}, "hostNetwork"),
    ({"template": {"serviceAccountName": "admin"}}, "serviceAccountName"),
    ({"template": {"nodeName": "octavo"}}, "nodeName"),
    ({"allowFrom": [{}]}, "neither nobody nor everybody"),
]


@pytest.mark.parametrize(("spec", "remedy"), INVALID, ids=[remedy[:30] for _, remedy in INVALID])
def test_an_invalid_service_is_refused_with_its_remedy(
    kubectl: Kubectl, services: Services, spec: dict[str, object], remedy: str
) -> None:

    document = json.dumps(services.manifest("invalid", **spec))
    answer = kubectl("create", "--validate=strict", "-f", "-", stdin=document, check=False)
    assert remedy in answer
    assert services.get("osvc", "invalid") is None
