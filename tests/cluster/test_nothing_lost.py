"""No accepted request is lost: two replicas of the real engine and model, under load, through all that ends a pod.

One story on one service. The clients are OpenAI's with their default retries, so what they are sent away with must be
something that they know how to handle.
"""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import openai
import pytest

from cluster_tools import Kubectl, create, wait_for
from counted_load import CountedLoad, Fate
from node import config, images, model
from operator_process import OperatorProcess
from patience import PATIENCE_SECONDS

log = logging.getLogger(__name__)

NAME, NAMESPACE = "steady", "nothing-lost"
KEY, NEXT_KEY = "first-key", "second-key"
CRD = config.CHECKOUT / "crds" / "inferenceservices.octavo.dev.yaml"
DRAIN_SECONDS = 30
ROLLOUT_SECONDS = 450  # two replicas, one after the other, each of which loads a model and drains
LONG = 4000  # tokens of an answer that is still under way when a busy machine has told a pod to go
EVICTED, REFUSED = "Success", "TooManyRequests"


def service(source: str, name: str = NAME, **spec: Any) -> dict[str, Any]:
    """Small replicas with API keys, one answer at a time: some requests always wait, and are sent away by a drain."""
    small = {
        "model": {"source": source, "servedName": "smollm2"},
        "engine": {"dtype": "bfloat16", "maxModelLen": 1024, "maxNumSeqs": 1, "kvCacheMemoryBytes": 1 << 27},
        "resources": {"requests": {"cpu": "300m", "memory": "512Mi"}, "limits": {"cpu": "1", "memory": "2Gi"}},
        "auth": {"apiKeySecretRef": {"name": "keys", "key": "api-key"}},
        "drainSeconds": DRAIN_SECONDS,
        "startupSeconds": 240,
    }
    head = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "octavo.dev/v1alpha1", "kind": "InferenceService", "metadata": head, "spec": small | spec}


@dataclass(frozen=True)
class Place:
    """A namespace with its operator, and kubectl in it."""

    kubectl: Kubectl
    operator: OperatorProcess
    source: str

    def __call__(self, *arguments: str, **options: Any) -> str:
        return self.kubectl("-n", NAMESPACE, *arguments, **options)

    def pods(self, name: str = NAME) -> dict[str, bool]:
        """Whether each pod that is not going is ready, the oldest first."""
        found = json.loads(self("get", "pods", "-l", f"octavo.dev/service={name}", "-o", "json"))["items"]
        staying = [item for item in found if "deletionTimestamp" not in item["metadata"]]
        staying.sort(key=lambda item: item["metadata"]["creationTimestamp"])
        return {item["metadata"]["name"]: _ready(item) for item in staying}

    def new_pods(self, old: set[str], replicas: int, name: str = NAME) -> bool:
        """Whether all that there is, the going included, is so many ready pods which are none of `old`."""
        pods = self.pods(name)
        names = self("get", "pods", "-l", f"octavo.dev/service={name}", "-o", "name").split()
        return len(names) == len(pods) == replicas and all(pods.values()) and not old & set(pods)

    def evict(self, pod: str) -> str:
        """Ask the eviction API, as `kubectl drain` does; returns the reason of its answer, `Success` or why not."""
        document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": NAMESPACE}}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction"
        answer = self("create", "--raw", path, "-f", "-", stdin=json.dumps(document), check=False)
        if "Cannot evict pod as it would violate the pod's disruption budget" in answer:
            return REFUSED
        return str(json.loads(answer)["status"]) if answer.startswith("{") else answer

    def address(self, name: str = NAME) -> str:
        return f"http://{self('get', 'service', name, '-o', 'jsonpath={.spec.clusterIP}')}:8000"


def _ready(pod: dict[str, Any]) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", ()))


def secret(*keys: str) -> dict[str, Any]:
    data = {"api-key": base64.b64encode("\n".join(keys).encode()).decode()}
    head = {"name": "keys", "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": head, "data": data}


@pytest.fixture(scope="module")
def place(kubectl: Kubectl, cluster: config.Settings) -> Iterator[Place]:
    if cluster.kubeconfig is not None:
        pytest.skip("images and the model are brought into the embedded node only")
    image = images.load(cluster, images.IMAGES["engine"])
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
    create(kubectl, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    source = model.publish(cluster, NAMESPACE)
    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    operator = OperatorProcess(kubectl, cluster, [NAMESPACE], image).start()
    made = Place(kubectl, operator, source)
    try:
        made("apply", "-f", "-", stdin=json.dumps(secret(KEY)))
        made("apply", "-f", "-", stdin=json.dumps(service(source, replicas=2)))
        wait_for(lambda: list(made.pods().values()) == [True, True], "two ready replicas", interval=1)
        yield made
    finally:
        operator.kill()
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def patch(place: Place, **spec: Any) -> None:
    place("patch", "osvc", NAME, "--type=merge", "-p", json.dumps({"spec": spec}))


Phases = dict[str, Callable[[Place], None]]


def lose_nothing(place: Place, phases: Phases, record_property: Callable[[str, object], None]) -> None:
    """Go through the phases under load; every exchange that was accepted, and every request, has ended well."""
    load = CountedLoad(place.address(), "smollm2", KEY)
    with load.running():
        for phase, act in phases.items():
            began = time.monotonic()
            load.account.phase = phase
            wait_for(lambda phase=phase: load.answers(phase) >= 2, f"answers in the phase {phase!r}")
            act(place)
            wait_for(lambda phase=phase: load.answers(phase) >= 6, f"more answers in the phase {phase!r}")
            load.account.seconds[phase] = time.monotonic() - began
    record_property("account", load.account.table())
    log.info("what became of every request:\n%s", load.account.table())
    assert load.account.failures == []
    assert sum(fates[Fate.WHOLE] for fates in load.account.exchanges.values()) == load.account.answers.total()


def test_no_accepted_request_is_lost(place: Place, record_property: Callable[[str, object], None]) -> None:
    phases: Phases = {
        "nothing happens": lambda _: None,
        "rolling restart, operator killed": rolling_restart_without_the_operator,
        "pod deleted": deleted_pod,
        "node drained": node_drain,
        "scaled down": scale_down,
    }
    lose_nothing(place, phases, record_property)


@pytest.mark.soak
def test_no_accepted_request_is_lost_in_five_rollouts(
    place: Place, record_property: Callable[[str, object], None]
) -> None:
    patch(place, replicas=2)
    wait_for(lambda: place.new_pods(set(), 2), "two ready replicas", interval=1)
    phases: Phases = {f"rollout {number}": partial(rolling_restart, number=number) for number in range(1, 6)}
    lose_nothing(place, phases | {f"drain {number}": node_drain for number in range(1, 4)}, record_property)


def rolling_restart(place: Place, number: int) -> None:
    old = set(place.pods())
    patch(place, restartedAt=f"2030-01-01T00:00:0{number}Z")
    wait_for(lambda: place.new_pods(old, 2), "the end of the rollout", within=ROLLOUT_SECONDS, interval=1)


def rolling_restart_without_the_operator(place: Place) -> None:
    """The operator is killed as soon as it has passed the wish on, and comes back before the end."""
    old = set(place.pods())
    patch(place, restartedAt="2029-01-01T00:00:00Z")
    wait_for(lambda: set(place.pods()) - old, "the first new pod")
    place.operator.kill()
    wait_for(lambda: any(ready for pod, ready in place.pods().items() if pod not in old), "it is ready")
    place.operator.start()
    wait_for(lambda: place.new_pods(old, 2), "the end of the rollout", within=ROLLOUT_SECONDS, interval=1)


def deleted_pod(place: Place) -> None:
    victim = min(place.pods())
    place("delete", "pod", victim, "--wait=false")
    wait_for(lambda: place.new_pods({victim}, 2), "a replacement", interval=1)


def node_drain(place: Place) -> None:
    """As `kubectl drain` goes about it, without closing a node that others use: evict all, again where refused."""
    first, second = place.pods()
    wait_for(lambda: place.evict(first) == EVICTED, "the first goes when both count as healthy", interval=1)
    assert place.evict(second) == REFUSED, "one of two may go at a time"
    starting = wait_for(lambda: set(place.pods()) - {first, second}, "a replacement").pop()
    assert place.evict(starting) == EVICTED, "what does not serve yet may always go"
    assert place.evict(second) == REFUSED
    wait_for(lambda: place.evict(second) == EVICTED, "the second goes when the first is replaced", interval=1)
    gone = {first, second, starting}
    wait_for(lambda: place.new_pods(gone, 2), "two new pods", within=ROLLOUT_SECONDS, interval=1)


def scale_down(place: Place) -> None:
    patch(place, replicas=1)
    wait_for(lambda: place.new_pods(set(), 1), "one pod is left", interval=1)


def test_keys_change_without_a_restart_and_without_harm_to_running_answers(place: Place) -> None:
    address, before = place.address(), set(place.pods())

    def accepted(key: str) -> bool:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.get(f"{address}/v1/models", headers=headers, timeout=PATIENCE_SECONDS).status_code == 200

    assert (accepted(KEY), accepted(NEXT_KEY)) == (True, False)
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, timeout=PATIENCE_SECONDS) as client:
        long = client.completions.create(
            model="smollm2", prompt="Once", max_tokens=900, stream=True, extra_body={"ignore_eos": True}
        )
        text = [next(iter(long)).choices[0].text]
        place("apply", "-f", "-", stdin=json.dumps(secret("# rotated", NEXT_KEY)))
        # The kubelet looks again within its sync period, or when the pod changes: a test has no minute to wait.
        place("annotate", "pod", "--all", "example.com/look-again=now", "--overwrite")
        wait_for(lambda: accepted(NEXT_KEY), "the new key is accepted")
        wait_for(lambda: not accepted(KEY), "the old key is not")
        last = ""
        for chunk in long:
            text.append(chunk.choices[0].text)
            last = chunk.choices[0].finish_reason or last
    assert last == "length"
    assert set(place.pods()) == before


def test_a_stream_longer_than_the_drain_is_told_and_the_pod_ends_in_time_with_0(place: Place) -> None:
    name = "short-drain"
    engine = {"dtype": "bfloat16", "maxModelLen": LONG + 96, "maxNumSeqs": 1, "kvCacheMemoryBytes": 1 << 27}
    place("apply", "-f", "-", stdin=json.dumps(service(place.source, name, drainSeconds=2, engine=engine)))
    (pod,) = wait_for(lambda: list(ready) if all((ready := place.pods(name)).values()) and ready else None, "ready")
    events: list[str] = []
    body = {"model": "smollm2", "prompt": "Once", "max_tokens": LONG, "ignore_eos": True, "stream": True}
    headers = {"Authorization": f"Bearer {next_key(place)}"}
    url = f"{place.address(name)}/v1/completions"
    with kept_when_deleted(place, pod):
        with httpx.stream("POST", url, json=body, headers=headers, timeout=PATIENCE_SECONDS) as reply:
            lines = (line.removeprefix("data: ") for line in reply.iter_lines() if line)
            events.append(next(lines))
            place("delete", "pod", pod, "--wait=false")
            events.extend(lines)
        path = "jsonpath={.status.containerStatuses[0].state.terminated}"
        end = wait_for(lambda: place("get", "pod", pod, "-o", path), "the kubelet's report of how it ended")
    assert json.loads(events[-1])["error"]["code"] == "interrupted"
    assert json.loads(end)["exitCode"] == 0, "SIGKILL has not been needed"
    place("delete", "osvc", name, "--wait=false")


@contextmanager
def kept_when_deleted(place: Place, pod: str) -> Iterator[None]:
    """The pod is there to tell how it ended for as long as the body asks."""
    patch = ("patch", "pod", pod, "--type=merge", "-p")
    place(*patch, '{"metadata":{"finalizers":["example.com/kept"]}}')
    try:
        yield
    finally:
        place(*patch, '{"metadata":{"finalizers":null}}')


def next_key(place: Place) -> str:
    """The key that the Secret holds now."""
    held = json.loads(place("get", "secret", "keys", "-o", "json"))["data"]["api-key"]
    return base64.b64decode(held).decode().split()[-1]
