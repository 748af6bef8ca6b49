"""The operator as a local process against the node, under its chart's own service account and roles."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

from cluster_api import administrator, kind_named, path_of
from cluster_tools import Kubectl, wait_for
from fault_proxy import FaultProxy
from free_ports import free_port
from node import binaries, config, programs
from patience import PATIENCE_SECONDS

RELEASE = "octavo"
LEASE_SECONDS = PATIENCE_SECONDS
"""Where nobody is to take over: an operator that could not renew a shorter one on a busy machine would exit, and nobody
starts it again. The next process of the same identity need not wait for it."""


class OperatorProcess:
    """One operator. `namespaces` are served; the first also holds Lease and account."""

    def __init__(self, kubectl: Kubectl, settings: config.Settings, namespaces: list[str], image: str) -> None:
        self._kubectl = kubectl
        self._namespaces = namespaces
        self._image = image
        self._folder = Path(tempfile.mkdtemp(prefix="octavo-operator-"))
        self._kubeconfig = self._folder / "kubeconfig.json"
        self._log = self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0
        self.environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(config.CHECKOUT / "operator")}
        self._grant(settings)

    def through(self, proxy: FaultProxy) -> OperatorProcess:
        """From the next start on the operator reaches the API server through a proxy, with its own token."""
        authority = base64.b64encode(proxy.certificate.read_bytes()).decode()
        document = json.loads(self._kubeconfig.read_text())
        document["clusters"][0]["cluster"] = {"server": proxy.url, "certificate-authority-data": authority}
        self._kubeconfig.write_text(json.dumps(document))
        return self

    def use_token(self, token: str) -> None:
        """Exchanges the token in the file, as the kubelet does in a pod."""
        document = json.loads(self._kubeconfig.read_text())
        document["users"][0]["user"] = {"token": token}
        following = self._kubeconfig.with_suffix(".next")
        following.touch(mode=0o600)
        following.write_text(json.dumps(document))
        following.replace(self._kubeconfig)

    def start(self, identity: str = "test", **flags: object) -> OperatorProcess:
        """Starts the process; `flags` are the operator's own, with underscores."""
        self.port = free_port()
        given: dict[str, object] = {
            "kubeconfig": self._kubeconfig,
            "namespaces": ",".join(self._namespaces),
            "lease_namespace": self._namespaces[0],
            "lease_name": RELEASE,
            "lease_seconds": LEASE_SECONDS,
            "identity": identity,
            "health_host": "127.0.0.1",
            "health_port": self.port,
            "engine_image": self._image,
            "management_addresses": f"{config.HOST_IP}/32",  # this process is no pod
            "scrape_seconds": 1,
            "scale_down_seconds": 10,
            "log_format": "plain",
        }
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in (given | flags).items()]
        command = [sys.executable, "-m", "octavo_operator", "run", *arguments]
        with self._log.open("ab") as log:
            self._began = log.tell()
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)
        return self

    @property
    def kubeconfig(self) -> Path:
        """With the operator's own token."""
        return self._kubeconfig

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """As a power cut would: nothing is released."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """As Kubernetes does; returns the exit status."""
        return self._end(signal.SIGTERM)

    def log(self) -> str:
        """Everything logged since the first start."""
        return self._log.read_text()

    def leads(self) -> bool:
        """Whether the process that was started last has taken the Lease."""
        return b"holding the lease" in self._log.read_bytes()[self._began :]

    def metrics(self) -> str:
        """What /metrics says."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE_SECONDS) as response:
            text: str = response.read().decode()
            return text

    def alive(self) -> bool:
        """What /livez says."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/livez", timeout=PATIENCE_SECONDS):
                return True
        except OSError:
            return False

    def unexpected_lines(self, *allowed: str) -> list[str]:
        """Lines no healthy run writes: errors, tracebacks. `allowed` are patterns of those that a fault explains."""
        loud = [line for line in self.log().splitlines() if re.search(r" (ERROR|CRITICAL) |Traceback", line)]
        return [line for line in loud if not any(re.search(pattern, line) for pattern in allowed)]

    def _end(self, number: int) -> int:
        if self._process is None or self._process.poll() is not None:
            return 0
        self._process.send_signal(number)
        return self._process.wait(timeout=PATIENCE_SECONDS)

    def _grant(self, settings: config.Settings) -> None:
        """The chart's account and roles, and a kubeconfig with a token of that account."""
        home = self._namespaces[0]
        values = f"namespaces={{{','.join(self._namespaces)}}}"
        self._kubectl("apply", "-f", "-", stdin=render_chart(home, "--set", values, "-s", "templates/rbac.yaml"))
        token = self._kubectl("create", "token", RELEASE, "-n", home, "--duration=1h").strip()
        document: dict[str, Any] = json.loads(settings.admin_kubeconfig.read_text())
        document["users"][0]["user"] = {"token": token}
        self._kubeconfig.touch(mode=0o600)
        self._kubeconfig.write_text(json.dumps(document))


def render_chart(namespace: str, *arguments: str, chart: str = "octavo-operator") -> str:
    """`helm template` of one of our charts; fails with helm's words."""
    command = [str(_helm()), "template", RELEASE, str(config.CHECKOUT / "charts" / chart)]
    # Without a cluster to ask, helm takes a version of its own that may be older than the chart allows.
    version = ["--kube-version", config.KUBERNETES_VERSION, "--namespace", namespace]
    done = subprocess.run(
        [*command, *version, *arguments],
        env=os.environ | {"KUBECONFIG": os.devnull},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise AssertionError(done.stderr)
    return done.stdout


@cache
def _helm() -> Path:
    """The program itself: hack/helm, which tests call hundreds of times, would first start a Python."""
    return binaries.built(config.Settings.from_environment(), programs.HELM)


class Services:
    """InferenceServices in one namespace: written as a user does it, with kubectl.

    What is there is asked over one kept connection: tests ask several times a second, and a process for each question
    would take the processors from what they wait for.
    """

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self._kubectl = kubectl
        self._api = administrator()
        self.namespace = namespace

    def apply(self, name: str, **spec: Any) -> None:
        """`kubectl apply --server-side` of a service; a small one unless `spec` says more."""
        document = self.manifest(name, **spec)
        self._kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(document))

    def apply_all(self, specs: dict[str, dict[str, Any]]) -> None:
        """Many services at once."""
        items = [self.manifest(name, **spec) for name, spec in specs.items()]
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        self._kubectl("apply", "--server-side", "-f", "-", stdin=document)

    def delete(self, name: str) -> None:
        """Deletes a service and waits until it is gone; its children follow."""
        self._kubectl("delete", "osvc", name, "-n", self.namespace)

    def head(self, name: str) -> dict[str, str]:
        """Metadata of an object of this namespace."""
        return {"name": name, "namespace": self.namespace}

    def all_of(self, kind: str) -> dict[str, dict[str, Any]]:
        """Every object of a kind, by name."""
        items = self._api.items(path_of(kind_named(kind), self.namespace))
        return {item["metadata"]["name"]: _shown(item) for item in items}

    def manifest(self, name: str, **spec: Any) -> dict[str, Any]:
        """The resource as a user writes it."""
        small = {"model": {"source": "file:///model"}, "drainSeconds": 1}
        head = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "octavo.dev/v1alpha1", "kind": "InferenceService", "metadata": head, "spec": small | spec}

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """An object, or None."""
        found = self._api.get(path_of(kind_named(kind), self.namespace, name))
        return _shown(found) if found else None

    def show_managed(self, name: str) -> dict[str, Any]:
        """A service with its managedFields, which kubectl hides otherwise."""
        where = ("-n", self.namespace, "-o", "json", "--show-managed-fields")
        found: dict[str, Any] = json.loads(self._kubectl("get", "osvc", name, *where))
        return found

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """A condition of a service; empty when it is absent."""
        service = self.get("osvc", name) or {}
        conditions = service.get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == kind), {})

    def wait_condition(self, name: str, kind: str, reason: str) -> dict[str, Any]:
        """Polls until a condition has a reason; returns the condition."""
        return wait_for(
            lambda: found if (found := self.condition(name, kind)).get("reason") == reason else None,
            f"{kind} of {name} for the reason {reason}",
        )

    def wait_ready(self, name: str, replicas: int = 1) -> dict[str, Any]:
        """Polls until so many replicas serve; returns the resource."""

        def ready() -> dict[str, Any] | None:
            service = self.get("osvc", name) or {}
            return service if service.get("status", {}).get("replicaSummary") == f"{replicas}/{replicas}" else None

        return wait_for(ready, f"{replicas} ready replicas of {name}")

    def desired(self, name: str) -> int:
        """How many replicas the service's Deployment shall have."""
        deployment = self.get("deployment", name)
        assert deployment is not None
        count: int = deployment["spec"]["replicas"]
        return count

    def pods(self, name: str) -> list[str]:
        """Names of a service's pods that are not going."""
        items = self._api.items(path_of(kind_named("pods"), self.namespace), f"octavo.dev/service={name}")
        return [item["metadata"]["name"] for item in items if "deletionTimestamp" not in item["metadata"]]


def _shown(item: dict[str, Any]) -> dict[str, Any]:
    """An object as kubectl shows it: who manages which field is asked for on its own."""
    item["metadata"].pop("managedFields", None)
    return item
