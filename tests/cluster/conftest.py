"""The embedded node for tests: brought up once, a namespace for each test, and a poller instead of sleeps."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_api import administrator, kind_named, path_of
from cluster_tools import KUBECTL_SECONDS, Kubectl, wait_for
from node import binaries, config, lifecycle, programs
from patience import PATIENCE_SECONDS
from running_order import name_of, put_first

HACK = config.HACK


ALONE = {
    "test_node.py": "kills the node's components, and drains it",
}
"""Files that want the node for themselves, and why."""

HEAVY = {
    "test_nothing_lost.py": "serves a real model on two replicas under load",
    "test_main_job.py": "serves a real model, and installs the charts",
    "test_prometheus.py": "serves a real model under load",
    "test_engine_alerts.py": "serves a real model under load",
    "operator/test_charts.py": "installs the charts, whose definitions it shares with the one before",
}
"""Files of which a few at a time are enough for the processors, and why. All others mostly wait for pods."""

LONGEST_FIRST = (
    *("test_node.py", "test_nothing_lost.py", "test_main_job.py", "operator/test_charts.py"),
    *("operator/test_crashes.py", "operator/test_outages.py", "operator/test_causes.py"),
    *("operator/test_failures.py", "operator/test_scaling.py", "test_engine_faults.py"),
    *("operator/test_accelerators.py", "operator/test_models.py", "operator/test_lifecycle.py"),
    *("operator/test_gitops.py", "operator/test_faults.py", "operator/test_operator_itself.py"),
    *("operator/test_network.py", "operator/test_walk.py", "operator/test_rollouts.py"),
    *("test_node_policies.py", "operator/test_limits_told.py", "operator/test_prometheus_operator.py"),
    *("operator/test_verdicts.py", "operator/test_permissions.py"),
)
"""See `running_order`. All others take less."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if (name := name_of(item, here)) is None:
            continue
        item.add_marker(pytest.mark.cluster)
        for mark, files in ((pytest.mark.alone, ALONE), (pytest.mark.heavy, HEAVY)):
            if name in files:
                item.add_marker(mark)
    put_first(items, here, LONGEST_FIRST)


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
    if "PYTEST_XDIST_WORKER" in os.environ and settings.kubeconfig is None and _well(settings):
        return settings
    done = subprocess.run(
        [HACK / "cluster", "up"], capture_output=True, text=True, timeout=2 * PATIENCE_SECONDS, check=False
    )
    if done.returncode:
        pytest.fail(f"hack/cluster up failed:\n{done.stdout}{done.stderr}", pytrace=False)
    return settings


def _well(settings: config.Settings) -> bool:
    """Whether the node is up: each worker asks, and `up` lets in one at a time."""
    found = lifecycle.status(settings)
    return bool(found) and all(component.state == "running" for component in found)


@pytest.fixture(scope="session")
def kubectl(cluster: config.Settings) -> Kubectl:
    # The program itself: hack/kubectl, which tests call thousands of times, would first start a Python.
    program = str(binaries.built(cluster, programs.KUBECTL))
    environment = os.environ | {"KUBECONFIG": str(cluster.admin_kubeconfig)}

    def run(*arguments: str, stdin: str | None = None, check: bool = True, timeout: float = KUBECTL_SECONDS) -> str:
        done = subprocess.run(
            [program, *arguments],
            input=stdin,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            pytest.fail(f"kubectl {' '.join(arguments)} failed:\n{done.stderr}", pytrace=False)
        return done.stdout if done.returncode == 0 else done.stderr

    return run


@pytest.fixture
def namespace(cluster: config.Settings) -> Iterator[str]:
    """A namespace of this test alone, under the restricted pod security standard."""
    api, name = administrator(), f"test-{uuid.uuid4().hex[:10]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    head = {"name": name, "labels": labels}
    api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": head})
    # A pod is refused until its service account exists.
    account = path_of(kind_named("serviceaccount"), name, "default")
    wait_for(lambda: api.get(account), "the service account", interval=0.05)
    yield name
    api.delete(f"/api/v1/namespaces/{name}")
