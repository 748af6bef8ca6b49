"""The embedded node for tests: brought up once, a namespace for each test, and a poller instead of sleeps."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_tools import Kubectl, create, wait_for
from node import config

HACK = config.HACK


ALONE = {
    "test_node.py": "kills the node's components",
    "test_node_extras.py": "drains the node",
    "test_node_policies.py": "expects what a connection does within seconds",
    "test_main_job.py": "serves a real model, and installs the charts",
    "test_nothing_lost.py": "serves a real model on two replicas under load",
    "test_engine_faults.py": "serves a real model",
    "operator/test_charts.py": "installs the charts, whose definitions all share",
    "operator/test_permissions.py": "holds the roles against what all the others have used",
}
"""Files that want the node for themselves, and why. The others run side by side: they mostly wait for pods."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.cluster)
            if str(item.path.relative_to(here)) in ALONE:
                item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session")
def settings() -> config.Settings:
    return config.Settings.from_environment()


@pytest.fixture(scope="session")
def cluster(settings: config.Settings) -> config.Settings:
    """The embedded node, or the cluster that OCTAVO_KUBECONFIG names; hack/with-cluster has built what it needs."""
    if settings.kubeconfig is None and os.geteuid() != 0:
        pytest.fail(
            "the cluster tests bring up a node of their own and need root; or set OCTAVO_KUBECONFIG", pytrace=False
        )
    done = subprocess.run([HACK / "cluster", "up"], capture_output=True, text=True, timeout=280, check=False)
    if done.returncode:
        pytest.fail(f"hack/cluster up failed:\n{done.stdout}{done.stderr}", pytrace=False)
    return settings


@pytest.fixture(scope="session")
def kubectl(cluster: config.Settings) -> Kubectl:
    def run(*arguments: str, stdin: str | None = None, check: bool = True, timeout: float = 60) -> str:
        command = [str(HACK / "kubectl"), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        if check and done.returncode:
            pytest.fail(f"{' '.join(command)} failed:\n{done.stderr}", pytrace=False)
        return done.stdout if done.returncode == 0 else done.stderr

    return run


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of this test alone, under the restricted pod security standard."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    create(kubectl, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    # A pod is refused until its service account exists.
    wait_for(
        lambda: kubectl("get", "-n", name, "serviceaccount/default", check=False).startswith("NAME"),
        30,
        "the service account",
    )
    yield name
    kubectl("delete", "namespace", name, "--wait=false")
