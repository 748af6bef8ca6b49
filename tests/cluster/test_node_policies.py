"""NetworkPolicies have effect on the embedded node: who may call whom, told by calling."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cluster_tools import Kubectl, create, wait_for
from metadata_server import metadata_server
from node import config
from patience import PATIENCE_SECONDS
from toolbox import reaches, resolves, start, toolbox

embedded = pytest.mark.skipif(
    config.Settings.from_environment().kubeconfig is not None, reason="about the embedded node, not a foreign cluster"
)
pytestmark = embedded

NAME = "kube-dns.kube-system.svc.cluster.local"
DNS = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
SERVE = """
for port in 8000 8001; do
    /busybox mkdir /www/$port; echo $port > /www/$port/index.html; /busybox httpd -p $port -h /www/$port
done
echo yes > /www/8001/ready
/busybox sleep 600"""


@pytest.fixture(scope="module", autouse=True)
def enforced(cluster: config.Settings) -> None:
    command = [config.HACK / "cluster", "addon", "network-policies"]
    subprocess.run(command, capture_output=True, timeout=PATIENCE_SECONDS, check=True)


@pytest.fixture
def elsewhere(kubectl: Kubectl, namespace: str) -> Iterator[str]:
    name = f"{namespace}-elsewhere"
    create(kubectl, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": "search"}}})
    wait_for(lambda: kubectl("get", "-n", name, "sa/default", check=False).startswith("NAME"), "the account")
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def policy(namespace: str, name: str, app: str, **directions: list[dict[str, Any]]) -> dict[str, Any]:
    types = [direction.capitalize() for direction in directions]
    spec = {"podSelector": {"matchLabels": {"app": app}}, "policyTypes": types, **directions}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


def server() -> dict[str, Any]:
    """Serves on two ports, and is ready where the node's probes find a page that can be taken away."""
    pod = toolbox("server", SERVE, app="server")
    pod["spec"]["volumes"] = [{"name": "www", "emptyDir": {}}]
    pod["spec"]["containers"][0] |= {
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8001}, "periodSeconds": 1},
        "volumeMounts": [{"name": "www", "mountPath": "/www"}],
    }
    return pod


def probes_come_through(kubectl: Kubectl, namespace: str) -> None:
    """The server becomes unready and ready again, which only the answer to a probe of now makes it."""
    page, path = "/www/8001/ready", "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    said = ("get", "pod", "server", "-n", namespace, "-o", path)
    for change, ready in ((f"/busybox rm {page}", "False"), (f"echo yes > {page}", "True")):
        kubectl("exec", "-n", namespace, "server", "--", "/busybox", "sh", "-c", change)
        wait_for(lambda ready=ready: kubectl(*said) == ready, f"the server's condition Ready to be {ready}")


def test_ports_open_only_to_whom_the_policies_name(kubectl: Kubectl, namespace: str, elsewhere: str) -> None:
    address = start(kubectl, namespace, server())
    start(kubectl, namespace, toolbox("friend", "/busybox sleep 600", app="friend"))
    start(kubectl, elsewhere, toolbox("stranger", "/busybox sleep 600"))
    clients = {"friend": namespace, "stranger": elsewhere}

    def seen() -> dict[str, tuple[bool, bool]]:
        calls = [(where, client, address, port) for client, where in clients.items() for port in (8000, 8001)]
        with ThreadPoolExecutor(len(calls)) as pool:
            answers = list(pool.map(lambda call: reaches(kubectl, *call), calls))
        return {"friend": (answers[0], answers[1]), "stranger": (answers[2], answers[3])}

    everybody = {"friend": (True, True), "stranger": (True, True)}
    wait_for(lambda: seen() == everybody, "all open without a policy")
    friends = {"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}], "ports": [{"port": 8001}]}
    create(kubectl, policy(namespace, "management", "server", ingress=[friends]))
    wanted = {"friend": (False, True), "stranger": (False, False)}
    wait_for(lambda: seen() == wanted, "8001 open to the friend alone")
    team = {"from": [{"namespaceSelector": {"matchLabels": {"team": "search"}}}], "ports": [{"port": 8000}]}
    create(kubectl, policy(namespace, "api", "server", ingress=[team]))
    wanted = {"friend": (False, True), "stranger": (True, False)}
    wait_for(lambda: seen() == wanted, "8000 open to the other namespace alone")
    probes_come_through(kubectl, namespace)
    kubectl("delete", "networkpolicy", "--all", "-n", namespace)
    wait_for(lambda: seen() == everybody, "all open again")


def test_names_resolve_while_the_metadata_address_is_out_of_reach(
    kubectl: Kubectl, namespace: str, cluster: config.Settings
) -> None:
    start(kubectl, namespace, toolbox("client", "/busybox sleep 600", app="client"))
    with metadata_server(cluster) as metadata:
        wait_for(lambda: reaches(kubectl, namespace, "client", metadata, 80), "the metadata address in reach")
        anywhere = {"cidr": "0.0.0.0/0", "except": ["169.254.169.254/32"]}
        outside = {"to": [{"ipBlock": anywhere}], "ports": [{"port": 443}, {"port": 80}]}
        ports = [{"port": "dns", "protocol": "UDP"}, {"port": "dns-tcp"}]
        create(kubectl, policy(namespace, "out", "client", egress=[{"to": [DNS], "ports": ports}, outside]))
        wait_for(lambda: not reaches(kubectl, namespace, "client", metadata, 80), "the metadata address out of reach")
        assert resolves(kubectl, namespace, "client", NAME)
        kubectl("delete", "networkpolicy", "out", "-n", namespace)
        wait_for(lambda: reaches(kubectl, namespace, "client", metadata, 80), "the metadata address in reach again")
