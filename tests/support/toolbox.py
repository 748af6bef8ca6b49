"""Pods of busybox alone, under the restricted pod security standard: they look at the cluster from inside."""

from __future__ import annotations

from typing import Any

from cluster_tools import Kubectl, create, wait_for
from node import config

RESTRICTED = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def toolbox(name: str, script: str, security: dict[str, Any] | None = RESTRICTED, **labels: str) -> dict[str, Any]:
    """A pod that runs a shell script once."""
    container = {
        "name": "main",
        "image": config.TOOLBOX_IMAGE,
        "imagePullPolicy": "Never",
        "args": ["sh", "-c", script],
        **({"securityContext": security} if security else {}),
    }
    spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, "containers": [container]}
    # A shell as process 1 sleeps through its own termination.
    spec["terminationGracePeriodSeconds"] = 0
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def deployment(namespace: str, name: str, script: str) -> dict[str, Any]:
    """One replica that runs a shell script for ever, on a tenth of a processor at most."""
    pod = toolbox(name, script)["spec"] | {"restartPolicy": "Always"}
    pod["containers"][0]["resources"] = {"requests": {"cpu": "20m"}, "limits": {"cpu": "100m"}}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod}
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def start(kubectl: Kubectl, namespace: str, pod: dict[str, Any]) -> str:
    """Create a pod and return its address once it is ready."""
    name = pod["metadata"]["name"]
    create(kubectl, {**pod, "metadata": {**pod["metadata"], "namespace": namespace}})
    kubectl("wait", "-n", namespace, f"pod/{name}", "--for=condition=Ready", "--timeout=240s")
    return kubectl("get", "pod", name, "-n", namespace, "-o", "jsonpath={.status.podIP}")


def run_to_end(kubectl: Kubectl, namespace: str, pod: dict[str, Any]) -> tuple[str, str]:
    """Run a pod and return its last phase and its log."""
    name = pod["metadata"]["name"]
    create(kubectl, {**pod, "metadata": {**pod["metadata"], "namespace": namespace}})

    def ended() -> str:
        phase = kubectl("get", "pod", name, "-n", namespace, "-o", "jsonpath={.status.phase}")
        return phase if phase in ("Succeeded", "Failed") else ""

    phase = wait_for(ended, f"the end of pod {name}")
    return phase, kubectl("logs", name, "-n", namespace)


def reaches(kubectl: Kubectl, namespace: str, pod: str, address: str, port: int, *, busybox: str = "/busybox") -> bool:
    """Whether a running pod gets an answer over HTTP within two seconds; busybox's client crashes when static.

    Args:
        busybox: where it is in the pod.
    """
    ask = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | {busybox} nc -w 2 {address} {port}"
    return "HTTP/1" in kubectl("exec", "-n", namespace, pod, "--", busybox, "sh", "-c", ask, check=False)


def resolves(kubectl: Kubectl, namespace: str, pod: str, name: str, *, busybox: str = "/busybox") -> bool:
    """Whether a running pod finds a name's address."""
    lookup = f"{busybox} nslookup {name} > /dev/null && echo yes"
    return kubectl("exec", "-n", namespace, pod, "--", busybox, "sh", "-c", lookup, check=False).endswith("yes\n")
