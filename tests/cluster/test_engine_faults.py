"""Real pods in trouble: a frozen step thread ends the engine, which serves again; a throttled one is only slow."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from cluster_api import administrator, kind_named, path_of
from cluster_tools import Kubectl, create, wait_for
from node import config, images, model
from patience import PATIENCE_SECONDS

NAME = "freezes-once"
FREEZING_TOKEN = 1234
SCRIPT = f"""
import pathlib, sys, time

from octavo_engine import cli
from octavo_engine.runtime.runner import Runner

frozen, compute = pathlib.Path("/tmp/frozen"), Runner.launch  # the file outlives the container, not the pod


def launch(self, batch):
    asked = any(p.request.tokens[0] == {FREEZING_TOKEN} and p.request.num_output for p in batch.slices)
    if asked and not frozen.exists():
        frozen.touch()
        time.sleep(3600)
    return compute(self, batch)


Runner.launch = launch
sys.exit(cli.main(["serve", *sys.argv[1:]]))
"""
FLAGS = (
    "--served-model-name=smollm2",
    "--host=0.0.0.0",
    "--management-host=0.0.0.0",
    "--max-model-len=512",
    "--kv-cache-memory-bytes=67108864",
    "--stuck-decode-seconds=8",
    "--max-num-seqs=2",
    "--max-waiting-requests=8",
)
LOADED_SECONDS = 25


def pod(image: str, **more: Any) -> dict[str, Any]:
    """The engine as the operator would run it, started through the script; `more` are fields of its container."""
    ready = {"httpGet": {"path": "/readyz", "port": 8001}, "periodSeconds": 1, "failureThreshold": 1}
    volumes = {
        "tmp": {"emptyDir": {}},
        "cache": {"emptyDir": {}},
        "models": {"persistentVolumeClaim": {"claimName": model.CLAIM, "readOnly": True}},
        "script": {"configMap": {"name": NAME}},
    }
    container = {
        "name": "engine",
        "image": image,
        "command": ["python", "/script/run.py", f"/models/{model.NAME}", *FLAGS],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": ready | {"failureThreshold": 240},
        "readinessProbe": ready,
        "livenessProbe": {"httpGet": {"path": "/livez", "port": 8001}, "periodSeconds": 10, "failureThreshold": 6},
        "resources": {"requests": {"cpu": "300m"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in volumes],
    } | more
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": name} | source for name, source in volumes.items()],
        "terminationGracePeriodSeconds": 10,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec}


class Engine:
    """A pod with an engine, and what is to be seen of it."""

    def __init__(self, kubectl: Kubectl, cluster: config.Settings, namespace: str, **more: Any) -> None:
        if cluster.kubeconfig is not None:
            pytest.skip("images and the model are brought into the embedded node only")
        self._kubectl, self._namespace = kubectl, namespace
        image = images.load(cluster, images.IMAGES["engine"])
        model.publish(cluster, namespace)
        for document in ({"apiVersion": "v1", "kind": "ConfigMap", "data": {"run.py": SCRIPT}}, pod(image, **more)):
            create(kubectl, document | {"metadata": {"name": NAME, "namespace": namespace}})

    def state(self) -> dict[str, Any]:
        """Its container's status, and the address."""
        found = administrator().get(path_of(kind_named("pod"), self._namespace, NAME)) or {}
        status = found.get("status", {})
        return dict((status.get("containerStatuses") or [{}])[0]) | {"podIP": status.get("podIP")}

    def ready(self, restarts: int) -> bool:
        now = self.state()
        return bool(now.get("ready")) and now.get("restartCount") == restarts

    def ended(self) -> dict[str, Any] | None:
        """How its first container ended: its present state until the node has made the next one, then its last."""
        now = self.state()
        found = (now.get(part, {}).get("terminated") for part in ("state", "lastState"))
        return next(filter(None, found), None)

    def ask(self, *prompt: int) -> httpx.Response:
        body = {"model": "smollm2", "prompt": prompt, "max_tokens": 8, "temperature": 0}
        return httpx.post(f"http://{self.state()['podIP']}:8000/v1/completions", json=body, timeout=PATIENCE_SECONDS)

    def log_of_the_previous(self) -> str:
        return self._kubectl("-n", self._namespace, "logs", NAME, "--previous")


def test_a_frozen_engine_explains_itself_is_restarted_and_answers_as_before(
    kubectl: Kubectl, cluster: config.Settings, namespace: str
) -> None:
    engine = Engine(kubectl, cluster, namespace)
    wait_for(lambda: engine.ready(0), "the engine serves")
    canary = engine.ask(504, 28, 338).json()["choices"][0]["text"]
    told = engine.ask(FREEZING_TOKEN, 28, 338)
    assert (told.status_code, told.json()["error"]["code"]) == (503, "engine_stopped")
    ended = wait_for(engine.ended, "the container's end")
    assert ended["exitCode"] == 1
    assert ended["message"].startswith("EngineStuck: the step thread has not moved for ")
    wait_for(lambda: engine.ready(1), "it serves again")
    assert "run.py" in engine.log_of_the_previous().split("EngineStuck: ")[1], "the stacks show where it froze"
    assert engine.ask(504, 28, 338).json()["choices"][0]["text"] == canary
    assert engine.ask(FREEZING_TOKEN, 28, 338).status_code == 200


def test_a_fifth_of_a_processor_and_a_full_queue_make_it_slow_and_restart_nothing(
    kubectl: Kubectl, cluster: config.Settings, namespace: str
) -> None:
    """With probes that are sharper than the operator's: three misses in six seconds would restart it."""
    live = {"httpGet": {"path": "/livez", "port": 8001}, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 3}
    little = {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m", "memory": "2Gi"}}
    engine = Engine(kubectl, cluster, namespace, livenessProbe=live, resources=little)
    wait_for(lambda: engine.ready(0), "the engine serves, in its time")
    end = time.monotonic() + LOADED_SECONDS
    address = f"http://{engine.state()['podIP']}:8001/livez"

    def keep_asking(number: int) -> list[int]:
        statuses = []
        while time.monotonic() < end:
            statuses.append(engine.ask(*range(1000 + number, 1400 + number)).status_code)
        return statuses

    with ThreadPoolExecutor(12) as clients:
        asking = [clients.submit(keep_asking, 7 * number) for number in range(12)]
        while time.monotonic() < end:
            assert httpx.get(address, timeout=PATIENCE_SECONDS).status_code == 200
            time.sleep(0.5)
        statuses = {status for future in asking for status in future.result(2 * PATIENCE_SECONDS)}
    assert statuses == {200, 429}, "some are served, and those that find the queue full are told"
    assert engine.state()["restartCount"] == 0
    assert engine.ask(504, 28, 338).status_code == 200
