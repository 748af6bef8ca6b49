"""The embedded node itself: pods run and are drained, names resolve, policies hold, repair works, nothing gets out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator

import pytest

from cluster_tools import Kubectl, create, wait_for
from node import config, lifecycle, processes
from node.health import healthy
from patience import PATIENCE_SECONDS
from toolbox import RESTRICTED, deployment, run_to_end, toolbox

embedded = pytest.mark.skipif(
    config.Settings.from_environment().kubeconfig is not None, reason="about the embedded node, not a foreign cluster"
)


def test_node_is_ready_with_the_pinned_version(kubectl: Kubectl) -> None:
    (node,) = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
    conditions = {item["type"]: item["status"] for item in node["status"]["conditions"]}
    assert conditions["Ready"] == "True"
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{config.KUBERNETES_VERSION}"


def test_restricted_pod_runs_with_a_read_only_root(kubectl: Kubectl, namespace: str) -> None:
    security = {**RESTRICTED, "readOnlyRootFilesystem": True}
    phase, log = run_to_end(kubectl, namespace, toolbox("hello", "/busybox id -u", security))
    assert (phase, log.strip()) == ("Succeeded", "65532")


def test_service_names_resolve_and_connect_in_a_pod(kubectl: Kubectl, namespace: str) -> None:
    # The DNS Service speaks TCP as well, so one Service shows both resolution and the way to an endpoint.
    name = "kube-dns.kube-system.svc.cluster.local"
    look_up, connect = f"/busybox nslookup {name}", "/busybox nc -w 5 kube-dns.kube-system.svc 53 </dev/null"
    # Both have time-outs of their own, which a busy machine may miss.
    script = f"until {look_up} && {connect}; do /busybox sleep 1; done"
    phase, log = run_to_end(kubectl, namespace, toolbox("resolve", script))
    assert phase == "Succeeded", log
    assert config.DNS_IP in log


def test_privileges_beyond_restricted_are_refused(kubectl: Kubectl, namespace: str) -> None:
    pod = toolbox("root", "true", security=None)
    pod["metadata"]["namespace"] = namespace
    answer = kubectl("create", "-f", "-", stdin=json.dumps(pod), check=False)
    assert 'violates PodSecurity "restricted' in answer


@embedded
def test_nothing_leaves_the_namespace(kubectl: Kubectl, namespace: str) -> None:
    # 203.0.113.0/24 is documentation's own: nobody would answer there anyway, so only the immediate refusal counts.
    script = "/busybox nc -w 5 203.0.113.1 80; echo code $?; /busybox nslookup example.org"
    phase, log = run_to_end(kubectl, namespace, toolbox("outside", script))
    assert phase == "Failed", log
    assert "unreachable" in log.lower(), log
    assert "code 1" in log
    routes = subprocess.run(["ip", "-n", config.NAMESPACE, "route"], capture_output=True, text=True, check=True).stdout
    assert not any(line.startswith("default") for line in routes.splitlines())


@embedded
def test_host_reaches_pods_and_services(kubectl: Kubectl, cluster: config.Settings) -> None:
    pod = kubectl(
        "get", "pods", "-n", "kube-system", "-l", "k8s-app=kube-dns", "-o", "jsonpath={.items[0].status.podIP}"
    )
    for address in (
        f"http://{pod}:8181/ready",
        f"https://{config.API_SERVICE_IP}/readyz",
        f"{config.PROMETHEUS_URL}/-/ready",
    ):
        wait_for(lambda address=address: healthy(address), f"an answer of {address}")


@embedded
def test_prometheus_finds_a_labelled_pod_and_names_its_service(kubectl: Kubectl, namespace: str) -> None:
    pod = toolbox("labelled", "/busybox sleep 60")
    pod["metadata"] |= {"namespace": namespace, "labels": {"octavo.dev/service": "assistant"}}
    create(kubectl, pod)
    wanted = {"namespace": namespace, "pod": "labelled", "inferenceservice": "assistant"}

    def found() -> bool:
        with urllib.request.urlopen(
            f"{config.PROMETHEUS_URL}/api/v1/targets?state=active", timeout=PATIENCE_SECONDS
        ) as response:
            targets = json.load(response)["data"]["activeTargets"]
        return any(wanted.items() <= target["labels"].items() for target in targets)

    wait_for(found, "the pod as a target of Prometheus")


@pytest.fixture
def uncordoned(kubectl: Kubectl) -> Iterator[None]:
    yield
    kubectl("uncordon", config.NODE_NAME)


@embedded
def test_a_drain_evicts_whom_it_selects_and_nobody_else(kubectl: Kubectl, namespace: str, uncordoned: None) -> None:
    for name in ("leaves", "stays"):
        create(kubectl, deployment(namespace, name, "/busybox sleep 600"))
        kubectl("rollout", "status", f"deployment/{name}", "-n", namespace, "--timeout=240s")

    def pods(*where: str) -> set[str]:
        return set(kubectl("get", "pods", *where, "-o", "jsonpath={.items[*].metadata.uid}").split())

    left, dns = pods("-n", namespace, "-l", "app=leaves"), pods("-n", "kube-system")
    kubectl("drain", config.NODE_NAME, "--pod-selector=app=leaves", "--timeout=240s")
    # The replacement waits for the node to come back.
    assert not pods("-n", namespace, "-l", "app=leaves", "--field-selector=spec.nodeName=octavo") & left
    assert pods("-n", "kube-system") == dns
    ready = ("get", "deployment", "stays", "-n", namespace, "-o", "jsonpath={.status.readyReplicas}")
    wait_for(lambda: kubectl(*ready) == "1", "a replica of the other Deployment that is ready")
    kubectl("uncordon", config.NODE_NAME)
    kubectl("rollout", "status", "deployment/leaves", "-n", namespace, "--timeout=240s")


@embedded
def test_second_up_is_a_fast_no_op(cluster: config.Settings) -> None:
    before = {item.name: item.pid for item in lifecycle.status(cluster)}
    spent = processor_seconds()
    up = subprocess.run(
        [config.HACK / "cluster", "up"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert processor_seconds() - spent < 10, up.stderr
    assert "start" not in up.stderr
    assert {item.name: item.pid for item in lifecycle.status(cluster)} == before


@embedded
@pytest.mark.parametrize("name", ["kube-scheduler", "containerd"])
def test_up_repairs_a_killed_component(kubectl: Kubectl, cluster: config.Settings, name: str) -> None:
    before = {item.name: item for item in lifecycle.status(cluster)}
    pid = before[name].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: state_of(cluster, name) == "stopped", f"the death of {name}")
    subprocess.run([config.HACK / "cluster", "up"], capture_output=True, timeout=PATIENCE_SECONDS, check=True)
    after = {item.name: item for item in lifecycle.status(cluster)}
    assert {item.state for item in after.values()} == {"running"}
    assert [other for other in after if after[other].pid != before[other].pid] == [name]


def processor_seconds() -> float:
    """Of all children that have ended."""
    spent = os.times()
    return spent.children_user + spent.children_system


def state_of(settings: config.Settings, name: str) -> str:
    return next(item.state for item in lifecycle.status(settings) if item.name == name)


def test_a_recycled_pid_is_left_alone() -> None:
    """A record of an earlier process with the pid of one that lives must not stop the latter."""
    with subprocess.Popen(["sleep", "60"]) as stranger:
        stale = processes.Record(pid=stranger.pid, started=1, boot=processes.boot_id(), fingerprint="")
        processes.stop(stale)
        assert stranger.poll() is None
        stranger.terminate()
