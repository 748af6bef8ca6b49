"""Rendered children: arguments, pod security, ownership; and what a user may not reach through the spec."""

import re

import pytest

from octavo_operator import engine_args, manifests, names
from octavo_operator.manifests import pod_monitor, prometheus_rule
from octavo_operator.spec import read_spec
from operator_samples import UID, made_deployment, resource, spec_of

FULL = {
    "model": {"source": "pvc://models/llama/8b", "servedName": "chat $(HOME)"},
    "engine": {
        "maxModelLen": 8192,
        "maxNumSeqs": 64,
        "maxNumBatchedTokens": 2048,
        "gpuMemoryUtilization": 0.9,
        "kvCacheMemoryBytes": 1 << 30,
        "dtype": "bfloat16",
        "blockSize": 16,
        "enablePrefixCaching": True,
        "enableChunkedPrefill": False,
        "schedulingPolicy": "fcfs",
        "prefixCacheScope": "server",
        "extraArgs": ["--max-waiting-requests=9"],
        "env": [{"name": "TZ", "value": "UTC $(PATH)"}],
    },
    "resources": {"requests": {"cpu": "1000m"}, "limits": {"memory": "2Gi"}},
    "auth": {"apiKeySecretRef": {"name": "keys", "key": "api-key"}},
    "monitoring": {"labels": {"release": "prometheus"}},
    "restartedAt": "2030-01-01T00:00:00Z",
    "template": {
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "high",
        "runtimeClassName": "nvidia",
        "imagePullSecrets": [{"name": "registry"}],
        "labels": {"team": "x"},
        "annotations": {"team": "y"},
    },
}

LATENCY_ALERTS = ("OctavoFirstTokenLate", "OctavoTokensSlow")


def rendered(**spec):
    return made_deployment(resource(**spec), 3)


def engine(**spec):
    return rendered(**spec)["spec"]["template"]["spec"]["containers"][0]


def test_arguments_follow_the_spec():
    assert engine(**FULL)["args"] == [
        "--model=/models/llama/8b",
        "--served-model-name=chat $$(HOME)",
        "--host=0.0.0.0",
        "--port=8000",
        "--management-host=0.0.0.0",
        "--management-port=8001",
        "--drain-seconds=45",
        "--max-model-len=8192",
        "--max-num-seqs=64",
        "--max-num-batched-tokens=2048",
        "--gpu-memory-utilization=0.9",
        f"--kv-cache-memory-bytes={1 << 30}",
        "--dtype=bfloat16",
        "--block-size=16",
        "--scheduling-policy=fcfs",
        "--prefix-cache-scope=server",
        "--api-key-file=/etc/octavo/keys/api-keys",
        "--enable-prefix-caching",
        "--no-enable-chunked-prefill",
        "--max-waiting-requests=9",
    ]


def test_a_minimal_spec_leaves_the_engine_its_defaults():
    assert [arg.split("=")[0] for arg in engine()["args"]] == [
        *("--model", "--served-model-name", "--host", "--port", "--management-host", "--management-port"),
        "--drain-seconds",
    ]


@pytest.mark.parametrize(
    ("source", "path", "claim"),
    [
        ("pvc://models/smollm2", "/models/smollm2", "models"),
        ("pvc://models/a/b.gguf", "/models/a/b.gguf", "models"),
        ("file:///opt/model", "/opt/model", None),
    ],
)
def test_where_the_model_is(source, path, claim):
    spec = spec_of(model={"source": source})
    assert engine_args.model_path(spec) == path
    assert engine_args.model_claim(spec) == claim
    volumes = rendered(model={"source": source})["spec"]["template"]["spec"]["volumes"]
    claims = [volume["persistentVolumeClaim"] for volume in volumes if "persistentVolumeClaim" in volume]
    assert claims == ([{"claimName": claim, "readOnly": True}] if claim else [])


@pytest.mark.parametrize("spec", [{}, FULL], ids=["minimal", "full"])
def test_the_pod_is_restricted(spec):
    pod = rendered(**spec)["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    kinds = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"emptyDir", "persistentVolumeClaim", "secret"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "nodeName"} & set(pod)
    assert pod["serviceAccountName"] == "assistant"


@pytest.mark.parametrize(("count", "shared"), [(None, False), ("1", False), ("2", True)])
def test_accelerators_that_share_a_model_have_memory_to_talk_through(count, shared):
    pod = rendered(resources={"limits": {"nvidia.com/gpu": count} if count else {}})["spec"]["template"]["spec"]
    assert ({"name": "shm", "mountPath": "/dev/shm"} in pod["containers"][0]["volumeMounts"]) == shared  # noqa: S108
    assert ("Memory" in [volume.get("emptyDir", {}).get("medium") for volume in pod["volumes"]]) == shared
    assert ("--tensor-parallel-size=2" in pod["containers"][0]["args"]) == shared


def test_the_grace_period_covers_pre_stop_and_drain():
    pod = rendered(drainSeconds=100)["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 100 + engine_args.PRE_STOP_SECONDS
    assert pod["containers"][0]["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}


def test_the_startup_probe_lasts_as_long_as_the_spec_says():
    probe = engine(startupSeconds=601)["startupProbe"]
    assert 601 <= probe["periodSeconds"] * probe["failureThreshold"] <= 603


@pytest.mark.parametrize("name", ["assistant", "my.model", "a" * 200])
def test_every_child_is_owned_and_labelled(name):
    parent = resource(name)
    spec = read_spec(parent)
    for child in (
        made_deployment(parent),
        manifests.service(parent),
        manifests.disruption_budget(parent),
        pod_monitor(parent, spec),
        prometheus_rule(parent, spec),
    ):
        head = child["metadata"]
        assert len(head["name"]) <= 63
        assert head["ownerReferences"] == [
            {
                "apiVersion": "octavo.dev/v1alpha1",
                "kind": "InferenceService",
                "name": name,
                "uid": UID,
                "controller": True,
            }
        ]
        assert head["annotations"][names.PARENT_ANNOTATION] == name
        assert all(
            len(value) <= 63 and re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", value)
            for value in head["labels"].values()
        )


def test_no_label_of_the_parent_is_copied():
    parent = resource()
    parent["metadata"]["labels"] = {"argocd.argoproj.io/instance": "prod"}
    assert "argocd.argoproj.io/instance" not in str(made_deployment(parent))


def test_user_labels_never_win_over_ours():
    template = rendered(template={"labels": {names.SERVICE_LABEL: "other"}})["spec"]["template"]
    assert template["metadata"]["labels"][names.SERVICE_LABEL] == "assistant"


def test_the_pod_monitor_names_the_service():
    parent = resource(**FULL)
    monitor = pod_monitor(parent, read_spec(parent))
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    endpoint = monitor["spec"]["podMetricsEndpoints"][0]
    assert endpoint["port"] == "management"
    assert endpoint["relabelings"][0]["targetLabel"] == "inferenceservice"
    assert endpoint["relabelings"][0]["sourceLabels"] == ["__meta_kubernetes_pod_label_octavo_dev_service"]


def test_a_pod_monitor_that_is_not_wanted_scrapes_nothing():
    """Else a Prometheus that also goes by the pods' annotations would count all twice."""
    parent = resource(monitoring={"podMonitor": False})
    monitor = pod_monitor(parent, read_spec(parent))
    assert monitor["spec"]["podMetricsEndpoints"] == []
    assert rules_of(podMonitor=False) == rules_of()


def rules_of(**monitoring):
    parent = resource("my.model", monitoring=monitoring)
    made = prometheus_rule(parent, read_spec(parent))
    return [rule for group in made["spec"]["groups"] for rule in group["rules"]]


def test_a_service_has_alerts_of_its_own():
    """Every selector of theirs names it, as its pods' label does, so no other service's trouble is told twice."""
    rules = rules_of()
    assert len({rule["alert"] for rule in rules}) == 12
    own = f'{{namespace="team",inferenceservice="{names.child_name("my.model")}"'
    for rule in rules:
        selectors = re.findall(r"octavo_[a-z_]+(\{?)", rule["expr"])
        assert selectors == ["{"] * rule["expr"].count(own), rule["alert"]


def test_objectives_are_taken_to_the_next_bound():
    rules = rules_of(timeToFirstTokenSeconds=1.2, interTokenLatencySeconds=0.05)
    late, slow = (next(rule for rule in rules if rule["alert"] == name) for name in LATENCY_ALERTS)
    assert 'le=~"1[.]5"' in late["expr"]
    assert "later than 1.5 s" in late["annotations"]["summary"]
    assert 'le=~"0[.]05"' in slow["expr"]


def test_an_objective_above_every_bound_is_the_last_bound():
    (late, *_) = rules_of(timeToFirstTokenSeconds=300)
    assert 'le=~"300|300[.]0"' in late["expr"]


def test_alerts_can_be_left_out():
    assert rules_of(alerts=False) == []


def test_the_seal_changes_with_the_content_alone():
    parent = resource()
    first, again = (manifests.sealed(manifests.service(parent)) for _ in range(2))
    other = manifests.sealed(manifests.service(resource("other")))
    seal = names.RENDERED_ANNOTATION
    assert first == again
    assert first["metadata"]["annotations"][seal] != other["metadata"]["annotations"][seal]
