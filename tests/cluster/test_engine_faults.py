"""A step thread that freezes in a real pod: the engine ends itself, its words outlive it, and it serves again."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from cluster_tools import Kubectl, create, wait_for
from node import config, images, model

NAME = "freezes-once"
FREEZING_TOKEN = 1234
SCRIPT = f"""
import pathlib, sys, time

from octavo_engine import cli
from octavo_engine.runtime.runner import Runner

frozen, compute = pathlib.Path("/tmp/frozen"), Runner.run  # the file outlives the container, not the pod


def run(self, batch):
    asked = any(p.request.tokens[0] == {FREEZING_TOKEN} and p.request.num_output for p in batch.slices)
    if asked and not frozen.exists():
        frozen.touch()
        time.sleep(3600)
    return compute(self, batch)


Runner.run = run
sys.exit(cli.main(["serve", *sys.argv[1:]]))
"""
FLAGS = (
    "--served-model-name=smollm2",
    "--host=0.0.0.0",
    "--management-host=0.0.0.0",
    "--max-model-len=512",
    "--kv-cache-memory-bytes=67108864",
    "--stuck-decode-seconds=8",
)


def pod(image: str) -> dict[str, Any]:
    """The engine as the operator would run it, started through the script."""
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
    }
    spec = {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": name} | source for name, source in volumes.items()],
        "terminationGracePeriodSeconds": 10,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME}, "spec": spec}


def test_a_frozen_engine_explains_itself_is_restarted_and_answers_as_before(
    kubectl: Kubectl, cluster: config.Settings, namespace: str
) -> None:
    if cluster.kubeconfig is not None:
        pytest.skip("images and the model are brought into the embedded node only")
    image = images.load(cluster, images.IMAGES["engine"])
    model.publish(cluster, namespace)
    for document in ({"apiVersion": "v1", "kind": "ConfigMap", "data": {"run.py": SCRIPT}}, pod(image)):
        head = {"name": NAME, "namespace": namespace}
        create(kubectl, document | {"metadata": head})

    def state() -> dict[str, Any]:
        found = json.loads(kubectl("-n", namespace, "get", "pod", NAME, "-o", "json"))["status"]
        return dict((found.get("containerStatuses") or [{}])[0]) | {"podIP": found.get("podIP")}

    def ready(restarts: int) -> bool:
        now = state()
        return bool(now.get("ready")) and now.get("restartCount") == restarts

    wait_for(lambda: ready(0), 150, "the engine serves", interval=1)
    address = f"http://{state()['podIP']}:8000/v1/completions"

    def ask(first: int) -> httpx.Response:
        body = {"model": "smollm2", "prompt": [first, 28, 338], "max_tokens": 8, "temperature": 0}
        return httpx.post(address, json=body, timeout=60)

    canary = ask(504).json()["choices"][0]["text"]
    told = ask(FREEZING_TOKEN)
    assert (told.status_code, told.json()["error"]["code"]) == (503, "engine_stopped")
    ended = wait_for(lambda: state().get("lastState", {}).get("terminated"), 60, "the container's end")
    assert ended["exitCode"] == 1
    assert ended["message"].startswith("EngineStuck: the step thread has not moved for ")
    log = kubectl("-n", namespace, "logs", NAME, "--previous")
    assert "run.py" in log.split("EngineStuck: ")[1], "the stacks show where it froze"
    wait_for(lambda: ready(1), 150, "it serves again", interval=1)
    assert ask(504).json()["choices"][0]["text"] == canary
    assert ask(FREEZING_TOKEN).status_code == 200
