"""The charts: what they render is valid to a real API server, restricted, and refuses values that make no sense."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
import yaml

from cluster_tools import Kubectl, create, wait_for
from node import config, images
from operator_process import Services, render_chart

COMBINATIONS = {
    "default": (),
    "namespaces": ("--set", "namespaces={default,kube-public}"),
    "cluster-wide": ("--set", "clusterWide=true"),
    "two-replicas": ("--set", "replicas=2", "--set", "log.format=plain"),
    "monitored": ("--set", "monitoring.enabled=true", "--set", "monitoring.labels.release=x"),
    "placed": (
        *("--set", "nodeSelector.zone=a", "--set", "priorityClassName=high", "--set", "imagePullSecrets[0].name=r"),
        *("--set", "tolerations[0].operator=Exists", "--set", "podLabels.team=x", "--set", "podAnnotations.team=y"),
    ),
}


def documents(*values: str, namespace: str = "octavo-system") -> list[dict[str, Any]]:
    return [item for item in yaml.safe_load_all(render_chart(namespace, *values)) if item]


@pytest.fixture(scope="module", autouse=True)
def running_cluster(cluster: config.Settings) -> None:
    """helm comes with the node's tools."""


@pytest.mark.parametrize("chart", ["octavo-crds", "octavo-operator"])
def test_lint(chart: str) -> None:
    path = config.CHECKOUT / "charts" / chart
    done = subprocess.run([config.HACK / "helm", "lint", "--strict", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", COMBINATIONS.values(), ids=COMBINATIONS)
def test_an_api_server_takes_what_is_rendered(kubectl: Kubectl, namespace: str, values: tuple[str, ...]) -> None:
    rendered = [item for item in documents(*values, namespace=namespace) if item["kind"] != "PodMonitor"]
    bundle = json.dumps({"apiVersion": "v1", "kind": "List", "items": rendered})
    answer = kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", stdin=bundle)
    assert "Warning" not in answer


def test_the_pod_is_restricted() -> None:
    (deployment,) = [item for item in documents() if item["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {"livenessProbe", "readinessProbe", "startupProbe"} <= set(container)


def test_namespaced_by_default_and_cluster_wide_when_asked() -> None:
    kinds = {item["kind"] for item in documents()}
    assert not {"ClusterRole", "ClusterRoleBinding"} & kinds
    wide = [item for item in documents("--set", "clusterWide=true") if item["kind"] == "ClusterRole"]
    narrow = [item for item in documents() if item["kind"] == "Role" and not item["metadata"]["name"].endswith("lease")]
    assert wide
    assert narrow[0]["rules"] in [item["rules"] for item in wide]


def test_no_rule_is_a_wildcard_or_touches_secrets() -> None:
    for values in COMBINATIONS.values():
        for item in documents(*values):
            for rule in item.get("rules", ()):
                assert not {"*", "secrets", "pods/exec", "escalate", "bind", "impersonate"} & {
                    *rule["verbs"],
                    *rule["resources"],
                    *rule["apiGroups"],
                }


@pytest.mark.parametrize(
    "values",
    [
        ("--set", "replicas=0"),
        ("--set", "log.level=loud"),
        ("--set", "unknown=1"),
        ("--set", "clusterWide=true", "--set", "namespaces={a}"),
        ("--set", "intervals.scrape=0"),
    ],
)
def test_values_that_make_no_sense_are_refused(values: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError, match="values don't meet the specifications"):
        render_chart("default", *values)


def test_installed_for_real_it_serves(
    kubectl: Kubectl, cluster: config.Settings, namespace: str, definition: None, engine_image: str
) -> None:
    """The operator's own image, in a restricted namespace, with its own account, brings a service up."""
    if cluster.kubeconfig is None:
        reference = images.load(cluster, images.IMAGES["operator"])
    else:
        reference = images.IMAGES["operator"].reference
    repository, _, tag = reference.rpartition(":")
    values = {"image.repository": repository, "image.tag": tag, "engineImage": engine_image}
    flags = [f"--set-string={name}={value}" for name, value in values.items()]
    for document in documents(*flags, namespace=namespace):
        create(kubectl, document)
    rollout = ("rollout", "status", "deployment/octavo", "-n", namespace, "--timeout=60s")
    answer = kubectl(*rollout, check=False, timeout=70)
    assert "successfully rolled out" in answer, kubectl("logs", "-n", namespace, "deployment/octavo", check=False)
    services = Services(kubectl, namespace)
    services.apply("inside")
    services.wait_ready("inside", timeout=60)
    pod = services.pods("inside")[0]
    listed = kubectl("exec", "-n", namespace, pod, "--", "/bin/busybox", "ls", "/var/run/secrets", check=False)
    assert "No such file" in listed
    logged = kubectl("logs", "-n", namespace, "deployment/octavo")
    lines = [json.loads(line) for line in logged.splitlines()]
    assert {line["level"] for line in lines} <= {"info", "warning"}
    wait_for(lambda: services.condition("inside", "MetricsAvailable").get("status") == "True", 20, "a sample")
