"""The real Prometheus Operator as a process on this machine, and a Prometheus that it makes on the node.

The Prometheus selects by the label `release`, as that of the community's chart kube-prometheus-stack does.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_api import administrator, has_condition
from cluster_tools import Kubectl, wait_for
from free_ports import free_port
from node import binaries, config, programs, runtime
from patience import PATIENCE_SECONDS
from prometheus_server import Prometheus

RELEASE = {"release": "kube-prometheus-stack"}
NAME = "monitoring"
_NOBODY = 65532
_DEFINITION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/prometheuses.monitoring.coreos.com"
_READ = [
    {"apiGroups": [""], "resources": ["pods", "services", "endpoints"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]},
]


class PrometheusOperator:
    """One that acts in a namespace, and the Prometheus that was asked of it."""

    def __init__(self, kubectl: Kubectl, settings: config.Settings, namespace: str, log: Path) -> None:
        self._kubectl, self._namespace, self._log = kubectl, namespace, log
        for image, program in (
            (config.PROMETHEUS_IMAGE, programs.PROMETHEUS),
            (config.RELOADER_IMAGE, programs.CONFIG_RELOADER),
        ):
            # Where the projects' own images have them: the operator calls the reloader by its path.
            runtime.ensure_program_image(settings, image, binaries.built(settings, program), folder="bin/")
        for path in (*binaries.monitoring_crds(settings), *binaries.prometheus_crds(settings)):
            kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
        wait_for(lambda: has_condition(administrator().get(_DEFINITION), "Established"), "the kind Prometheus")
        self._process = self._start(settings)
        kubectl("apply", "-f", "-", stdin=_text(*_rights(namespace), _prometheus(namespace)))

    def _start(self, settings: config.Settings) -> subprocess.Popen[bytes]:
        flags = {
            "namespaces": self._namespace,
            "prometheus-config-reloader": config.RELOADER_IMAGE,
            "config-reloader-cpu-request": "10m",
            "web.listen-address": f"127.0.0.1:{free_port()}",
        }
        command = [str(binaries.built(settings, programs.PROMETHEUS_OPERATOR))]
        command += [f"--{flag}={value}" for flag, value in flags.items()]
        environment = os.environ | {"KUBECONFIG": str(settings.admin_kubeconfig)}
        with self._log.open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def wait_serving(self) -> Prometheus:
        """The Prometheus, once its pod is ready."""

        def address() -> str:
            assert self._process.poll() is None, self._log.read_text(errors="replace")[-2000:]
            where = ("-n", self._namespace, "pod", f"prometheus-{NAME}-0")
            ready = "{.status.conditions[?(@.type=='Ready')].status} {.status.podIP}"
            state = self._kubectl("get", *where, "-o", f"jsonpath={ready}", check=False).split()
            return state[1] if len(state) == 2 and state[0] == "True" else ""

        return Prometheus(f"http://{wait_for(address, 'the Prometheus that was asked for', interval=0.5)}:9090")

    def stop(self) -> None:
        """Ends the operator; what it made stays until its namespace goes."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)


@contextmanager
def prometheus_operator(kubectl: Kubectl, settings: config.Settings, namespace: str) -> Iterator[PrometheusOperator]:
    """One that ends with the body."""
    with tempfile.TemporaryDirectory(prefix="octavo-prometheus-operator-") as folder:
        made = PrometheusOperator(kubectl, settings, namespace, Path(folder, "log"))
        try:
            yield made
        finally:
            made.stop()


def _prometheus(namespace: str) -> dict[str, Any]:
    """The resource as that chart writes it: everything chosen by the release's label, in every namespace."""
    selector = {"matchLabels": RELEASE}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "Prometheus",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "image": config.PROMETHEUS_IMAGE,
            "version": f"v{config.PROMETHEUS_VERSION}",
            "imagePullPolicy": "Never",
            "replicas": 1,
            "serviceAccountName": NAME,
            "podMonitorSelector": selector,
            "podMonitorNamespaceSelector": {},
            "serviceMonitorSelector": selector,
            "serviceMonitorNamespaceSelector": {},
            "ruleSelector": selector,
            "ruleNamespaceSelector": {},
            "evaluationInterval": "5s",
            "resources": {"requests": {"cpu": "50m", "memory": "100Mi"}},
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _NOBODY,
                "fsGroup": _NOBODY,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        },
    }


def _rights(namespace: str) -> list[dict[str, Any]]:
    head, kind = {"name": NAME, "namespace": namespace}, "rbac.authorization.k8s.io"
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": head},
        {"apiVersion": f"{kind}/v1", "kind": "Role", "metadata": head, "rules": _READ},
        {
            "apiVersion": f"{kind}/v1",
            "kind": "RoleBinding",
            "metadata": head,
            "roleRef": {"apiGroup": kind, "kind": "Role", "name": NAME},
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
        },
    ]


def _text(*items: dict[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)})
