"""What a platform engineer would do: images, charts, a namespace, a model volume, one InferenceService."""

from __future__ import annotations

import json
from typing import Any

from node import addons, binaries, images, model, programs
from node.config import CHECKOUT, Settings
from node.shell import NodeError, run
from node.steps import step

NAMESPACE = "octavo-demo"
OPERATOR_NAMESPACE = "octavo-system"
SERVICE = "assistant"
READY_SECONDS = 600
_RESTRICTED = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}},
    }
)


def everything(settings: Settings) -> None:
    """Images, model, charts and the resource; all can be done again over what is there."""
    engine = images.load(settings, images.IMAGES["engine"])
    operator = images.load(settings, images.IMAGES["operator"])
    with step("the model lies on a local volume: claim `models`"):
        addons.apply(settings, _RESTRICTED)
        model.publish(settings, NAMESPACE)
    with step("helm installs the CRDs and the operator"):
        release(settings, "octavo-crds", "charts/octavo-crds")
        release(settings, "octavo-operator", "charts/octavo-operator", **operator_values(engine, operator, NAMESPACE))
    with step("kubectl apply -f examples/smollm2.yaml"):
        # The story begins with one pod, also when it was told before.
        gone = ("delete", "osvc", SERVICE, "--ignore-not-found", "--cascade=foreground", "--timeout=90s")
        addons.kubectl(settings, "-n", NAMESPACE, *gone, timeout=100)
        addons.kubectl(settings, "-n", NAMESPACE, "apply", "-f", str(CHECKOUT / "examples" / "smollm2.yaml"))


def operator_values(engine: str, operator: str, namespace: str) -> dict[str, str]:
    """The chart's values for images that only the node has."""
    repository, _, tag = operator.rpartition(":")
    return {"image.repository": repository, "image.tag": tag, "engineImage": engine, "namespaces[0]": namespace}


def release(settings: Settings, name: str, chart: str, namespace: str = OPERATOR_NAMESPACE, **values: str) -> None:
    """Install or upgrade a chart of the checkout and wait until what it made is ready."""
    program = binaries.built(settings, programs.HELM)
    settings_flags = [f"--set-string={name}={value}" for name, value in values.items()]
    where = ("--namespace", namespace, "--create-namespace", "--kubeconfig", settings.admin_kubeconfig)
    install = ("upgrade", "--install", name, CHECKOUT / chart, "--wait", "--timeout=3m", "--take-ownership")
    run([program, *install, *where, *settings_flags], timeout=240)


def wait_ready(settings: Settings) -> None:
    """Wait for the condition Ready; on failure say what the resource itself says."""
    wait = ("wait", f"osvc/{SERVICE}", "--for=condition=Ready", f"--timeout={READY_SECONDS}s")
    try:
        addons.kubectl(settings, "-n", NAMESPACE, *wait, timeout=READY_SECONDS + 10)
    except NodeError as error:
        raise NodeError(f"{SERVICE} did not become ready:\n{conditions(settings)}") from error


def resource(settings: Settings) -> dict[str, Any]:
    """The InferenceService as it is now."""
    found: dict[str, Any] = json.loads(addons.kubectl(settings, "-n", NAMESPACE, "get", "osvc", SERVICE, "-o", "json"))
    return found


def conditions(settings: Settings) -> str:
    """Its conditions, a line each."""
    found = resource(settings).get("status", {}).get("conditions", [])
    return "\n".join(f"  {c['type']}={c['status']} {c['reason']}: {c.get('message', '')}" for c in found)


def table(settings: Settings) -> str:
    """What `kubectl get osvc` shows."""
    return "$ kubectl get osvc\n" + addons.kubectl(settings, "-n", NAMESPACE, "get", "osvc").rstrip()


def address(settings: Settings) -> str:
    """Where this machine reaches the service's API."""
    ip = addons.kubectl(settings, "-n", NAMESPACE, "get", "service", SERVICE, "-o", "jsonpath={.spec.clusterIP}")
    return f"http://{ip}:8000/v1"
