"""The main job with everything real: charts, operator, engine image, SmolLM2 on a claim, OpenAI's client, Prometheus.

One service for the module; the tests run in the order in which a user would meet them. The scaling of replicas under
a real burst is the demo's story and, decision by decision, that of `operator/test_scaling.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import chart_samples
import prometheus_operator
import releases
from cluster_tools import Kubectl, create, wait_for
from demo import install
from node import config, images, model
from patience import PATIENCE_SECONDS
from prometheus_server import Prometheus

CHECKOUT = config.CHECKOUT
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
NAME = install.SERVICE


@pytest.fixture(scope="module")
def service(kubectl: Kubectl, cluster: config.Settings) -> Iterator[str]:
    """The demo's InferenceService, ready, in a namespace of its own; its operator comes from the chart."""
    if cluster.kubeconfig is not None:
        pytest.skip("images and the model are brought into the embedded node only")
    namespace = "main-job"
    engine, operator = (images.load(cluster, images.IMAGES[name]) for name in ("engine", "operator"))
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    kubectl("delete", "namespace", namespace, "--ignore-not-found")
    create(kubectl, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
    model.publish(cluster, namespace)
    install.release(cluster, "octavo-crds", "charts/octavo-crds")
    install.release(
        cluster,
        "main-job-operator",
        "charts/octavo-operator",
        namespace=namespace,
        **install.operator_values(engine, operator, namespace),
    )
    kubectl("-n", namespace, "apply", "-f", str(CHECKOUT / "examples" / "smollm2.yaml"))
    kubectl("-n", namespace, "wait", f"osvc/{NAME}", "--for=condition=Ready", "--timeout=240s")
    yield namespace
    kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture(scope="module")
def client(kubectl: Kubectl, service: str) -> Iterator[openai.OpenAI]:
    address = kubectl("-n", service, "get", "service", NAME, "-o", "jsonpath={.spec.clusterIP}")
    with openai.OpenAI(base_url=f"http://{address}:8000/v1", api_key="none", timeout=PATIENCE_SECONDS) as made:
        yield made


def chat(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(
        model="smollm2", messages=QUESTION, **({"temperature": 0, "max_tokens": 24} | options)
    )


def test_it_answers_streamed_and_plain_alike(client: openai.OpenAI) -> None:
    plain = chat(client).choices[0].message.content
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat(client, stream=True) if chunk.choices)
    assert plain == streamed
    assert "Paris" in plain


def test_kubectl_tells_what_a_person_wants_to_know(kubectl: Kubectl, service: str) -> None:
    head, _ = kubectl("-n", service, "get", "osvc").splitlines()
    assert head.split() == ["NAME", "READY", "REASON", "MODEL", "REPLICAS", "QUEUE", "URL", "AGE"]

    def told() -> list[str]:
        return kubectl("-n", service, "get", "osvc", "--no-headers").split()[:5]

    # On a busy machine a probe may come late, and the replica is not ready for a moment.
    wait_for(lambda: told() == [NAME, "True", "Serving", "smollm2", "1/1"], f"a row that says so; now: {told()}")


def program(name: str, *arguments: str) -> str:
    """What one of our commands prints that a user calls beside kubectl."""
    path = f"{config.HACK}{os.pathsep}{os.environ['PATH']}"  # the node's kubectl comes first
    done = subprocess.run(
        [str(Path(sys.executable).with_name(name)), *arguments],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_plugin_shows_explains_and_talks(service: str) -> None:
    def octavo(*arguments: str) -> str:
        return program("kubectl-octavo", "-n", service, *arguments)

    wait_for(lambda: "AllReplicasReady" in octavo("status", NAME), "the word that all are ready")
    wait_for(lambda: "Is it ready? Yes. Serving" in octavo("explain", NAME), "the word that it is ready")
    likeliest = ("--max-tokens", "24", "--temperature", "0")
    assert "Paris" in octavo("chat", NAME, "-m", QUESTION[0]["content"], *likeliest)
    assert f"pod/{NAME}" in octavo("logs", NAME, "--tail", "3")


def test_what_limits_each_replica_is_asked_through_kubectl(service: str) -> None:
    """In the replica by the plugin's doctor, from here by its `top`."""
    pod, figures, *_ = program("kubectl-octavo", "-n", service, "doctor", NAME, "--seconds", "1").splitlines()
    assert pod.startswith(f"{NAME}-")
    assert re.match(r"in \d+[.]\d s: \d+ tokens/s, ", figures), figures
    page = program("kubectl-octavo", "-n", service, "top", NAME, "--once", "--interval", "1")
    assert page.startswith("smollm2: serving\n")
    assert f"\n{pod} limited by " in page


def test_a_client_gets_400_that_names_the_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, temperature=9)
    assert refused.value.param == "temperature"


def test_the_pod_runs_without_privileges(kubectl: Kubectl, service: str) -> None:
    inside = (
        "import os; print(os.getuid() != 0, os.access('/', os.W_OK), "
        "os.path.exists('/var/run/secrets/kubernetes.io/serviceaccount'))"
    )
    said = kubectl("-n", service, "exec", f"deploy/{NAME}", "--", "python", "-c", inside)
    assert said.split() == ["True", "False", "False"]


def expressions(path: Path) -> list[str]:
    """The queries of a board's panels, variables filled in; but for those of exporters that are none of ours."""
    board = json.loads(path.read_text())
    values = {"$namespace": "main-job", "$service": NAME, "$pod": ".*", "$__rate_interval": "2m", "$percentile": "0.99"}
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    found = [expr for expr in found if "octavo_" in expr]
    for variable, value in values.items():
        found = [expr.replace(variable, value) for expr in found]
    return found


def test_every_query_of_the_boards_finds_data_in_a_real_prometheus(client: openai.OpenAI, service: str) -> None:
    """After a little load. Series that need an event which a healthy service does not have may be zero, never
    absent."""
    for _ in range(3):
        chat(client)
    pending = {expr for path in (CHECKOUT / "dashboards").glob("*.json") for expr in expressions(path)}
    assert len(pending) > 80
    server, deadline = Prometheus(config.PROMETHEUS_URL), time.monotonic() + PATIENCE_SECONDS
    while pending and time.monotonic() < deadline:
        chat(client)
        pending = {expr for expr in pending if not server.query(expr)}
        time.sleep(1)
    assert not pending


@pytest.mark.soak
def test_the_prometheus_operator_finds_the_engine_and_records_what_it_does(
    kubectl: Kubectl, cluster: config.Settings, client: openai.OpenAI, service: str
) -> None:
    """With the labels and the chart's values of docs/GRAFANA.md, and an answer in between."""
    monitoring = {"enabled": True, "interval": "5s", "labels": prometheus_operator.RELEASE, "rules": {"enabled": True}}
    flags = chart_samples.flags({f"monitoring.{name}": value for name, value in monitoring.items()})
    where = ("main-job-operator", releases.OPERATOR_CHART, "--namespace", service, "--reuse-values")
    releases.helm("upgrade", *where, *flags)
    labels = {"spec": {"monitoring": {"labels": prometheus_operator.RELEASE}}}
    kubectl("-n", service, "patch", "osvc", NAME, "--type=merge", "-p", json.dumps(labels))
    whose = f'namespace="{service}",inferenceservice="{NAME}"'
    with prometheus_operator.prometheus_operator(kubectl, cluster, service) as made:
        server = made.wait_serving()
        targets = wait_for(lambda: server.targets().get(f"podMonitor/{service}/{NAME}/0"), "the engine's target")
        assert len(targets) == 1
        for name in ("octavo_generation_tokens_total:rate5m", "octavo_requests_total:rate5m"):
            recorded = f"inferenceservice:{name}{{{whose}}} > 0"
            wait_for(lambda query=recorded: chat(client) and server.query(query), recorded)
        assert server.query(f'octavo_engine_info{{{whose},container="engine"}}')
        assert server.value("max(octavo_operator_leading)") == 1
        assert {rule["health"] for rules in server.rules().values() for rule in rules} == {"ok"}


def test_a_stream_survives_the_deletion_of_its_pod(client: openai.OpenAI, kubectl: Kubectl, service: str) -> None:
    """What was accepted is finished; what comes meanwhile is served by the successor or told to come again."""
    stream = chat(client, stream=True, max_tokens=200, extra_body={"ignore_eos": True})
    first = next(iter(stream))
    pod = kubectl("-n", service, "get", "pods", "-l", f"octavo.dev/service={NAME}", "-o", "name").split()[0]
    kubectl("-n", service, "delete", pod, "--wait=false")
    chunks = [first, *stream]
    assert chunks[-1].choices[0].finish_reason == "length"
    wait_for(lambda: kubectl("-n", service, "get", pod, check=False).startswith("Error"), "the old pod's end")
    kubectl("-n", service, "rollout", "status", f"deployment/{NAME}", "--timeout=240s")
    kubectl("-n", service, "wait", f"osvc/{NAME}", "--for=condition=Ready", "--timeout=240s")
    assert "Paris" in chat(client.with_options(max_retries=8)).choices[0].message.content


def test_a_changed_flag_rolls_without_a_failed_request(client: openai.OpenAI, kubectl: Kubectl, service: str) -> None:
    answers: list[str] = []
    stop = threading.Event()
    patient = client.with_options(max_retries=8)

    def ask() -> None:
        while not stop.is_set():
            answers.append(chat(patient).choices[0].message.content)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        patch = json.dumps({"spec": {"engine": {"maxNumSeqs": 5}}})
        kubectl("-n", service, "patch", "osvc", NAME, "--type=merge", "-p", patch)
        wait_for(lambda: rolled(kubectl, service), "the rollout", interval=1)
        wait_for(lambda: len(answers) > 3, "answers before, during and after it")
    finally:
        stop.set()
        asking.join(PATIENCE_SECONDS)
    assert len(set(answers)) == 1
    assert "Paris" in answers[0]


def rolled(kubectl: Kubectl, namespace: str) -> bool:
    deployment = json.loads(kubectl("-n", namespace, "get", "deployment", NAME, "-o", "json"))
    args = deployment["spec"]["template"]["spec"]["containers"][0]["args"]
    status = deployment["status"]
    current = status.get("observedGeneration") == deployment["metadata"]["generation"]
    done = status.get("updatedReplicas") == status.get("readyReplicas") == status.get("replicas") == 1
    return "--max-num-seqs=5" in args and current and done


def test_the_operators_log_is_clean(kubectl: Kubectl, service: str) -> None:
    lines = kubectl("-n", service, "logs", "deploy/main-job-operator").splitlines()
    assert lines
    assert not [line for line in lines if '"level": "error"' in line.lower() or "Traceback" in line]


def test_nothing_of_the_checkout_is_in_the_image(kubectl: Kubectl, service: str) -> None:
    where = kubectl(
        "-n", service, "exec", f"deploy/{NAME}", "--", "python", "-c", "import octavo_engine as o; print(o.__path__)"
    )
    assert str(Path(__file__).parents[2]) not in where
