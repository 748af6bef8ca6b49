"""The effect of a service's NetworkPolicy and account, told by calling from pods that may and pods that may not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from cluster_tools import Kubectl, create, wait_for
from metadata_server import metadata_server
from node import config
from operator_process import Services
from patience import PATIENCE_SECONDS
from toolbox import reaches, resolves, start, toolbox

pytestmark = pytest.mark.skipif(
    config.Settings.from_environment().kubeconfig is not None, reason="about the embedded node, not a foreign cluster"
)
WAITS = "/busybox sleep 600"


@pytest.fixture(scope="module", autouse=True)
def enforced(cluster: config.Settings) -> None:
    command = [config.HACK / "cluster", "addon", "network-policies"]
    subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS, check=True)


@pytest.fixture(scope="module")
def elsewhere(kubectl: Kubectl, shared: tuple[Services, object]) -> Iterator[str]:
    """Another team's namespace, with a pod that calls itself Prometheus."""
    name = f"{shared[0].namespace}-elsewhere"
    create(kubectl, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": "search"}}})
    wait_for(lambda: kubectl("get", "-n", name, "sa/default", check=False).startswith("NAME"), "the account")
    start(kubectl, name, toolbox("stranger", WAITS))
    start(kubectl, name, toolbox("prometheus", WAITS, **{"app.kubernetes.io/name": "prometheus"}))
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def engine(kubectl: Kubectl, services: Services, name: str) -> tuple[str, str]:
    """Name and address of the service's one pod."""
    (pod,) = services.pods(name)
    found = services.get("pod", pod)
    assert found is not None
    return pod, found["status"]["podIP"]


def test_ports_are_open_to_whom_they_are_for(kubectl: Kubectl, services: Services, elsewhere: str) -> None:
    peers = [{"podSelector": {"matchLabels": {"app": "friend"}}}]
    services.apply_all({"open": {}, "closed": {"allowFrom": peers}})
    here = services.namespace
    start(kubectl, here, toolbox("friend", WAITS, app="friend"))
    for name in ("open", "closed"):
        services.wait_ready(name)
    addresses = {name: engine(kubectl, services, name)[1] for name in ("open", "closed")}
    clients = {"friend": here, "stranger": elsewhere, "prometheus": elsewhere}

    def table() -> dict[tuple[str, str], tuple[bool, bool]]:
        return {
            (client, name): (
                reaches(kubectl, where, client, address, 8000),
                reaches(kubectl, where, client, address, 8001),
            )
            for client, where in clients.items()
            for name, address in addresses.items()
        }

    expected = {
        # client, service: the API, the management port
        ("friend", "open"): (True, False),
        ("friend", "closed"): (True, False),
        ("stranger", "open"): (True, False),
        ("stranger", "closed"): (False, False),
        ("prometheus", "open"): (True, True),
        ("prometheus", "closed"): (False, True),
    }
    wait_for(lambda: table() == expected, "the ports that are open to each, and no others")
    # The operator itself, and the kubelet's probes, still get through.
    for name in ("open", "closed"):
        services.wait_condition(name, "MetricsAvailable", "AllReplicasReport")
        services.wait_ready(name)


def test_an_engine_reaches_names_and_nothing_else(
    kubectl: Kubectl, services: Services, elsewhere: str, cluster: config.Settings
) -> None:
    services.apply("inner")
    services.wait_ready("inner")
    pod, _ = engine(kubectl, services, "inner")
    here, busybox = services.namespace, "/bin/busybox"
    start(kubectl, here, toolbox("free", WAITS))
    listener = start(kubectl, elsewhere, toolbox("listener", f"/busybox httpd -p 9000 -h /; {WAITS}"))
    with metadata_server(cluster) as metadata:
        # Not the API server: it is on the pod's own node here, which a policy does not cut off.
        for address, port in ((metadata, 80), (listener, 9000)):
            where = partial(reaches, kubectl, here, address=address, port=port)
            wait_for(lambda where=where: where(pod="free"), f"an answer of {address}:{port} without a policy")
            assert not where(pod=pod, busybox=busybox), f"{address}:{port}"
    name = "kubernetes.default.svc.cluster.local"
    wait_for(lambda: resolves(kubectl, here, pod, name, busybox=busybox), "the address of a name")


def test_no_token_is_in_the_pod(kubectl: Kubectl, services: Services) -> None:
    services.apply("bare")
    services.wait_ready("bare")
    pod, _ = engine(kubectl, services, "bare")
    found = services.get("pod", pod)
    assert found is not None
    assert found["spec"]["serviceAccountName"] == "bare"
    assert not any("projected" in volume for volume in found["spec"]["volumes"])
    command = ("/bin/busybox", "ls", "/var/run/secrets")
    assert "No such file" in kubectl("exec", "-n", services.namespace, pod, "--", *command, check=False)
    answer = kubectl(
        *("auth", "can-i", "--list", "-n", services.namespace),
        f"--as=system:serviceaccount:{services.namespace}:bare",
    )
    assert "pods" not in answer
    assert "secrets" not in answer
