"""What the node has for tests: pod metrics and autoscalers by them, schemas, kstatus, image variants."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest

from cluster_tools import Kubectl, create, wait_for
from node import config, runtime
from patience import PATIENCE_SECONDS
from toolbox import deployment

embedded = pytest.mark.skipif(
    config.Settings.from_environment().kubeconfig is not None, reason="about the embedded node, not a foreign cluster"
)


def hack(
    *command: str, stdin: str | None = None, timeout: float = PATIENCE_SECONDS
) -> subprocess.CompletedProcess[str]:
    """Run one of the commands of hack/."""
    argv = [config.HACK / command[0], *command[1:]]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)


@embedded
def test_an_autoscaler_follows_the_metrics_of_pods(kubectl: Kubectl, namespace: str) -> None:
    assert hack("cluster", "addon", "metrics-server").returncode == 0
    create(kubectl, deployment(namespace, "busy", "while :; do :; done"))
    kubectl("autoscale", "deployment", "busy", "-n", namespace, "--cpu=50%", "--min=1", "--max=2")
    wait_for(lambda: "busy-" in kubectl("top", "pods", "-n", namespace, check=False), "metrics of the pod")
    replicas = ("get", "deployment", "busy", "-n", namespace, "-o", "jsonpath={.spec.replicas}")
    wait_for(lambda: kubectl(*replicas) == "2", "a second replica")


@pytest.fixture(scope="module")
def kubeconform(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Checks a manifest against what the API server itself serves; returns what kubeconform says, if anything."""
    exported = hack("schemas", str(tmp_path_factory.mktemp("schemas")))
    location = exported.stdout.strip()
    return lambda text: hack("kubeconform", "-strict", f"-schema-location={location}", stdin=text).stdout


def test_schemas_of_the_api_server_find_a_misspelt_field(kubeconform: Callable[[str], str]) -> None:
    right = json.dumps(deployment("default", "web", "true"))
    wrong = right.replace('"restartPolicy"', '"dnsPolicyy": "x", "restartPolicy"')
    assert kubeconform(right) == ""
    assert "'dnsPolicyy' not allowed" in kubeconform(wrong)


def test_kstatus_reads_the_objects_of_the_cluster(kubectl: Kubectl, namespace: str) -> None:
    def verdict() -> str:
        said = hack("kstatus", stdin=kubectl("get", "deployment", "web", "-n", namespace, "-o", "json"))
        return str(json.loads(said.stdout)["status"])

    create(kubectl, deployment(namespace, "web", "/busybox sleep 600"))
    wait_for(lambda: verdict() == "Current", "the library's word that it is current")
    kubectl("set", "image", "deployment/web", "-n", namespace, "main=localhost/missing:1")
    assert verdict() == "InProgress"


@embedded
def test_a_variant_is_the_same_image_under_another_name(cluster: config.Settings) -> None:
    plain = hack("images", "load", "operator", timeout=PATIENCE_SECONDS).stdout.strip()
    variant = hack("images", "load", "operator", "--variant=next").stdout.strip()
    assert variant == f"{plain}-next"
    assert {plain, variant} <= runtime.references(cluster)
