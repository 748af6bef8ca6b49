"""Autoscaling on the node, with engines whose load the test writes."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import urllib.request
from collections.abc import Callable

import fake_engine
from cluster_tools import Kubectl, create, wait_for
from operator_process import OperatorProcess, Services
from patience import PATIENCE_SECONDS

log = logging.getLogger(__name__)

WINDOW_SECONDS = 10  # of decreases, for these tests' operator
NONSENSE: list[tuple[object, str]] = [
    ({"running": "NaN"}, "not a load (KeyError"),
    (fake_engine.IDLE | {"running": -1}, "not a count"),
    (fake_engine.IDLE | {"oldest_wait_seconds": math.inf}, "not a finite number"),
    ("a text", "not a load (TypeError"),
    (fake_engine.IDLE | {"padding": "x" * 70_000}, "more than 65536 bytes"),
]
"""What a replica may say of its load that is no load, and what the sampler says of that."""


class Stream:
    """A client that reads a slow answer of one replica from begin to end."""

    def __init__(self, services: Services, pod: str) -> None:
        document = services.get("pod", pod)
        assert document is not None
        self._url = f"http://{document['status']['podIP']}:8001/cgi-bin/token-stream"
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        wait_for(lambda: self.lines, "the stream's first line")

    def _read(self) -> None:
        with urllib.request.urlopen(self._url, timeout=PATIENCE_SECONDS) as answer:
            for line in answer:
                self.lines.append(line.decode().strip())

    def finish(self) -> list[str]:
        """All lines, once the stream has ended."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive()
        return self.lines


def test_up_within_ten_seconds_and_down_without_cutting_a_stream(
    kubectl: Kubectl, namespace: str, make_operator: Callable[..., OperatorProcess]
) -> None:
    services, operator = Services(kubectl, namespace), make_operator(namespace)
    operator.start(scrape_seconds=5)  # as installed; the other tests sample every second
    services.apply("grows", autoscaling={"maxReplicas": 2, "targetQueueDepth": 2}, drainSeconds=600)
    services.wait_ready("grows")
    (first,) = services.pods("grows")
    fake_engine.set_load(kubectl, services.namespace, first, fake_engine.busy(waiting=9))
    grown = time.monotonic()
    wait_for(lambda: services.desired("grows") == 2, "the second replica")
    log.info("from the queue's growth to the Deployment's count: %.1f s", time.monotonic() - grown)
    document = services.wait_ready("grows", replicas=2)
    (decision,) = document["status"]["scaling"]["decisions"]
    assert (decision["fromReplicas"], decision["toReplicas"]) == (1, 2)
    assert "9 waiting" in decision["message"]

    # The older one is busier: the younger one is to go, and the stream that is open there may finish.
    (second,) = set(services.pods("grows")) - {first}
    stream = Stream(services, second)
    fake_engine.set_load(kubectl, services.namespace, first, fake_engine.busy(waiting=0, running=1))
    wait_for(lambda: services.desired("grows") == 1, "one replica less")
    wait_for(lambda: services.pods("grows") == [first], "the end of the least busy replica to begin")
    told = len(stream.lines)
    wait_for(lambda: len(stream.lines) > told + 20, "tokens well after the pod was told to end")
    fake_engine.end_streams(kubectl, services.namespace, second)
    assert stream.finish()[-1] == "data: [DONE]"
    wait_for(lambda: services.get("pod", second) is None, "the pod's end after its stream's")


def test_without_data_the_count_is_held_and_with_data_it_moves_again(kubectl: Kubectl, services: Services) -> None:
    services.apply("silent", autoscaling={"minReplicas": 2, "maxReplicas": 2})
    services.wait_ready("silent", replicas=2)
    first = services.pods("silent")[0]
    fake_engine.set_load(kubectl, services.namespace, first, {"running": "NaN"})

    def first_is_silent() -> bool:
        condition = services.condition("silent", "MetricsAvailable")
        said = condition.get("message", "")
        return condition.get("reason") == "SomeReplicasSilent" and first in said and "not a load" in said

    wait_for(first_is_silent, "the word that one replica tells nothing")
    assert services.condition("silent", "MetricsAvailable")["status"] == "False"
    # From here on it is the data alone that is missing for a decrease.
    services.apply("silent", autoscaling={"minReplicas": 1, "maxReplicas": 2})
    for nonsense, words in NONSENSE:
        for pod in services.pods("silent"):
            fake_engine.set_load(kubectl, services.namespace, pod, nonsense)
        wait_for(lambda words=words: tells_no_data(services, "silent", words), f"a condition that says {words}")
    held_until = time.monotonic() + 1.5 * WINDOW_SECONDS
    while time.monotonic() < held_until:
        assert services.desired("silent") == 2
        time.sleep(1)
    for pod in services.pods("silent"):
        fake_engine.set_load(kubectl, services.namespace, pod, fake_engine.IDLE)
    services.wait_condition("silent", "MetricsAvailable", "AllReplicasReport")
    wait_for(lambda: services.desired("silent") == 1, "one replica less, now that idleness is known")


def tells_no_data(services: Services, name: str, words: str) -> bool:
    """Whether status says that no replica told its load, that the count is held, and why in the sampler's words."""
    condition = services.condition(name, "MetricsAvailable")
    said = condition.get("message", "")
    return condition.get("reason") == "NoData" and "held" in said and words in said


def burn(kubectl: Kubectl, namespace: str, pod: str) -> None:
    """Lets a pod use all the processor time it may have, until the file /tmp/calm is there."""
    loop = "until [ -e /tmp/calm ]; do for n in $(/bin/busybox seq 2000); do :; done; done"
    kubectl("exec", "-n", namespace, pod, "--", "/bin/busybox", "sh", "-c", f"({loop}) > /dev/null 2>&1 &")


def test_mode_external_follows_a_horizontal_pod_autoscaler(kubectl: Kubectl, services: Services) -> None:
    """The autoscaler writes spec.replicas through /scale; the operator follows, and writes nothing of its own there."""
    wait_for(
        lambda: '"resources"' in kubectl("get", "--raw", "/apis/metrics.k8s.io/v1beta1", check=False),
        "the metrics API (hack/cluster addon metrics-server)",
    )
    resources = {"requests": {"cpu": "50m"}, "limits": {"cpu": "100m"}}
    services.apply("external", replicas=1, autoscaling={"mode": "External"}, resources=resources)
    services.wait_ready("external")
    (first,) = services.pods("external")
    burn(kubectl, services.namespace, first)
    fake_engine.set_load(kubectl, services.namespace, first, fake_engine.busy(waiting=99))
    create(kubectl, horizontal_pod_autoscaler(services.namespace, "external", maximum=2))
    wait_for(lambda: services.desired("external") == 2, "the autoscaler's second replica")
    assert services.wait_ready("external", replicas=2)["spec"]["replicas"] == 2
    writers = spec_writers(kubectl, services.namespace, "external")
    assert "octavo-operator" not in writers
    assert "kube-controller-manager" in writers, "the autoscaler, through the scale subresource"
    assert services.condition("external", "ScalingLimited") == {}, "the limits are the autoscaler's"

    patch = json.dumps({"spec": {"maxReplicas": 1}})
    kubectl("patch", "hpa", "external", "-n", services.namespace, "--type=merge", "-p", patch)
    wait_for(lambda: services.desired("external") == 1, "the autoscaler to take it back")
    services.wait_ready("external")
    kubectl("delete", "hpa", "external", "-n", services.namespace)
    kubectl("scale", "osvc/external", "-n", services.namespace, "--replicas=0")
    wait_for(lambda: services.condition("external", "Ready").get("reason") == "ScaledToZero", "no replica by hand")


def spec_writers(kubectl: Kubectl, namespace: str, name: str) -> set[str]:
    """Who has written what is not status."""
    shown = kubectl("get", "osvc", name, "-n", namespace, "-o", "json", "--show-managed-fields")
    fields = json.loads(shown)["metadata"]["managedFields"]
    return {entry["manager"] for entry in fields if entry.get("subresource") != "status"}


def horizontal_pod_autoscaler(namespace: str, name: str, maximum: int) -> dict[str, object]:
    """By processor time, as examples/hpa.yaml has it."""
    target = {"apiVersion": "octavo.dev/v1alpha1", "kind": "InferenceService", "name": name}
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}
    spec = {
        "scaleTargetRef": target,
        "minReplicas": 1,
        "maxReplicas": maximum,
        "metrics": [{"type": "Resource", "resource": cpu}],
    }
    head = {"name": name, "namespace": namespace}
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": head, "spec": spec}
