"""The management ports of a service's replicas, through kubectl and its context: one forwarded port for each.

Pods come and go while one looks: each `refresh` forwards to those that are new, and lets go of those that have gone.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from octavo_engine.errors import OctavoError
from octavo_engine.explain.fetching import ManagementPort

SERVICE_LABEL = "octavo.dev/service"
PORT = 8001
KUBECTL_SECONDS = 30.0
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class ClusterUnreachable(OctavoError):
    """kubectl is missing or refused; the message is its own."""


class Forwarding:
    """A process of kubectl that forwards a free local port to a pod's management port, until it is closed."""

    def __init__(self, kubectl: Sequence[str], pod: str) -> None:
        command = [*kubectl, "port-forward", f"pod/{pod}", f":{PORT}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        found = _FORWARDING.search(self._process.stdout.readline())
        if found is None:
            said = self._process.stderr.read().strip()
            self.close()
            raise ClusterUnreachable(said or f"no port could be forwarded to {pod}")
        self.port = ManagementPort(f"http://127.0.0.1:{found[1]}")

    @property
    def alive(self) -> bool:
        """Whether kubectl still forwards."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(KUBECTL_SECONDS)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


class Replicas:
    """The ready replicas of `service` in kubectl's context. `options` go with each call: --context, --namespace."""

    def __init__(
        self, service: str, options: Sequence[str], forward: Callable[[Sequence[str], str], Forwarding] = Forwarding
    ) -> None:
        program = shutil.which("kubectl")
        if program is None:
            raise ClusterUnreachable("kubectl is not on PATH")
        self._kubectl, self._service, self._forward = [program, *options], service, forward
        self._open: dict[str, Forwarding] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for forwarding in self._open.values():
            forwarding.close()
        self._open.clear()

    def refresh(self) -> Mapping[str, ManagementPort]:
        """A port for each replica that is ready now, by pod. Raises ClusterUnreachable."""
        names = ready_pods(self._pods())
        for name in [name for name, forwarding in self._open.items() if name not in names or not forwarding.alive]:
            self._open.pop(name).close()
        for name in names:
            if name not in self._open:
                self._open[name] = self._forward(self._kubectl, name)
        if not names:
            raise ClusterUnreachable(f"no replica of {self._service} is ready; see kubectl get osvc")
        return {name: self._open[name].port for name in names}

    def _pods(self) -> list[dict[str, Any]]:
        selector = f"--selector={SERVICE_LABEL}={self._service}"
        command = [*self._kubectl, "get", "pods", selector, "--output=json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=KUBECTL_SECONDS, check=False)
        if done.returncode:
            raise ClusterUnreachable(done.stderr.strip() or "kubectl get pods failed")
        pods: list[dict[str, Any]] = json.loads(done.stdout)["items"]
        return pods


def ready_pods(pods: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of those that serve and are not on their way out."""
    return sorted(
        pod["metadata"]["name"]
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        and any(
            (item["type"], item["status"]) == ("Ready", "True") for item in pod.get("status", {}).get("conditions", ())
        )
    )
