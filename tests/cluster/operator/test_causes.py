"""Why a service is not ready: each cause on a real node, in a word within 30 s, without touching what serves."""

from __future__ import annotations

import json

import pytest

from cluster_tools import Kubectl, wait_for
from operator_process import Services

CASES = [
    ("no-claim", {"model": {"source": "pvc://nowhere/m"}}, "PvcNotFound", "nowhere"),
    ("no-image", {"engine": {"image": "localhost/none:1"}}, "ImagePullFailed", "localhost/none:1"),
    ("no-model", {"model": {"source": "file:///missing"}}, "ModelNotFound", "/missing"),
    ("crashes", {"model": {"source": "file:///crash"}}, "CrashLoop", "Traceback"),
    ("no-keys", {"auth": {"apiKeySecretRef": {"name": "nokeys", "key": "k"}}}, "Starting", "Secret nokeys"),
    (
        "no-gpu",
        {"resources": {"limits": {"nvidia.com/gpu": "1"}}},
        "InsufficientAccelerator",
        "Insufficient nvidia.com",
    ),
    ("no-node", {"template": {"nodeSelector": {"no": "where"}}}, "Unschedulable", "node"),
    ("too-big", {"resources": {"requests": {"memory": "900Gi"}}}, "Unschedulable", "Insufficient memory"),
]


@pytest.fixture(scope="module", autouse=True)
def all_applied(shared: tuple[Services, object]) -> None:
    """All at once: one service's trouble delays no other."""
    for name, spec, _, _ in CASES:
        shared[0].apply(name, **spec)


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
    assert services.condition("survives", "Ready")["status"] == "True"
    assert set(before) <= set(services.pods("survives"))
    services.apply("survives")
    wait_for(lambda: services.pods("survives") == before, 45, "the old pods alone")
    wait_for(lambda: not services.condition("survives", "Stalled"), 15, "the end of the trouble")


INVALID = [
    ({"replicas": 2, "autoscaling": {"maxReplicas": 3}}, "replicas and autoscaling exclude each other"),
    ({"autoscaling": {"mode": "External"}}, "needs spec.replicas"),
    ({"replicas": 1, "autoscaling": {"mode": "External", "minReplicas": 2}}, "external autoscaler"),
    ({"autoscaling": {"minReplicas": 2}}, "needs maxReplicas"),
    ({"autoscaling": {"minReplicas": 5, "maxReplicas": 3}}, "must not exceed maxReplicas"),
    ({"replicas": 65}, "less than or equal to 64"),
    ({"model": {"source": "hf://org/name"}}, "put the checkpoint on a PersistentVolumeClaim"),
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
    ({"resources": {"limits": {"nvidia.com/gpu": 2}}}, "one accelerator"),
    ({"resources": {"limits": {"cpu": "lots"}}}, "limits"),
    ({"template": {"labels": {"octavo.dev/service": "x"}}}, "a prefix of your own"),
    ({"template": {"hostNetwork": True}}, "hostNetwork"),
    ({"template": {"serviceAccountName": "admin"}}, "serviceAccountName"),
    ({"template": {"nodeName": "octavo"}}, "nodeName"),
    ({"cache": {"persistentVolumeClaim": "x"}}, "cache"),
]


@pytest.mark.parametrize(("spec", "remedy"), INVALID, ids=[remedy[:30] for _, remedy in INVALID])
def test_an_invalid_service_is_refused_with_its_remedy(
    kubectl: Kubectl, services: Services, spec: dict[str, object], remedy: str
) -> None:

    document = json.dumps(services.manifest("invalid", **spec))
    answer = kubectl("create", "--validate=strict", "-f", "-", stdin=document, check=False)
    assert remedy in answer
    assert services.get("osvc", "invalid") is None
