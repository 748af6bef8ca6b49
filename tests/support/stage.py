"""A namespace, a fault proxy and an operator behind it: what every test of faults plays on."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import children
from cluster_api import SERVICES, ClusterApi, Object, path_of
from cluster_tools import wait_for
from fault_proxy import FaultProxy
from node import config
from operator_process import OperatorProcess
from patience import PATIENCE_SECONDS

MakeOperator = Callable[..., OperatorProcess]


class Stage:
    """Services run no pod unless a test asks for one: what fails here are calls."""

    def __init__(self, settings: config.Settings, namespace: str, make_operator: MakeOperator) -> None:
        self.api = ClusterApi(settings.admin_kubeconfig)
        self.namespace = namespace
        cluster = json.loads(settings.admin_kubeconfig.read_text())["clusters"][0]["cluster"]
        self.folder = Path(tempfile.mkdtemp(prefix="octavo-stage-"))
        self.proxy = FaultProxy(cluster["server"], cluster["certificate-authority-data"], self.folder).start()
        self.operator = make_operator(namespace).through(self.proxy)

    def close(self) -> None:
        """Ends the operator, the proxy and the connection."""
        self.operator.kill()
        self.proxy.stop()
        self.api.close()

    def start(self, identity: str = "test", **flags: object) -> None:
        """Starts the operator with patience enough for faults, and waits until it leads."""
        usual: dict[str, object] = {"api_timeout_seconds": 2, "heartbeat_seconds": 2}
        self.operator.start(identity, **(usual | flags))
        wait_for(self.operator.leads, "the operator's lead", interval=0.05)

    def apply(self, name: str, **spec: Any) -> Object:
        """A service of no replica, unless `spec` says otherwise."""
        head = {"name": name, "namespace": self.namespace}
        body = {"model": {"source": "file:///model"}, "replicas": 0} | spec
        document = {"apiVersion": SERVICES[0], "kind": "InferenceService", "metadata": head, "spec": body}
        return self.api.apply(self._path(name), document)

    def delete(self, name: str) -> None:
        """Deletes a service."""
        self.api.delete(self._path(name))

    def service(self, name: str) -> Object:
        """A service; empty where there is none."""
        return self.api.get(self._path(name)) or {}

    def condition(self, name: str, kind: str) -> Object:
        """A condition of a service; empty when it is absent."""
        conditions = self.service(name).get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == kind), {})

    def child(self, kind: tuple[str, str], name: str) -> Object:
        """A child of a service by apiVersion and plural; empty where there is none."""
        return self.api.get(path_of(kind, self.namespace, name)) or {}

    def children(self, name: str) -> dict[str, Object]:
        """All children of a service, comparable."""
        return children.of_service(self.api, self.namespace, name)

    def settled(self, name: str) -> bool:
        """Whether status speaks of the present spec, and nothing is under way."""
        service = self.service(name)
        status = service.get("status", {})
        conditions = {item["type"]: item for item in status.get("conditions", ())}
        current = status.get("observedGeneration") == service.get("metadata", {}).get("generation")
        return bool(current and "Reconciling" not in conditions)

    def wait_settled(self, *names: str) -> None:
        """Polls until every service is settled."""
        for name in names:
            wait_for(partial(self.settled, name), f"the settling of {name}", interval=0.1)

    def wait_like(self, name: str, expected: dict[str, Object]) -> None:
        """Polls until a service's children are those expected; fails with the differences."""
        self.wait_all_like([name], expected)

    def wait_all_like(self, names: list[str], expected: dict[str, Object]) -> None:
        """Polls until the children of every one of these services are those expected, and none is an orphan."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            all_children = children.of_services(self.api, self.namespace)
            wrong = {name: children.differences(expected, all_children.get(name, {})) for name in names}
            if not any(wrong.values()):
                break
            assert time.monotonic() < deadline, {name: found for name, found in wrong.items() if found}
            time.sleep(0.2)
        assert children.orphans(self.api, self.namespace) == []

    def kill_after(self, writes: int) -> None:
        """The operator dies as of a power cut once so many of its writes are done, before it hears of the last."""
        self.proxy.cut(writes, lambda: os.kill(self.operator.pid, signal.SIGKILL))

    def _path(self, name: str) -> str:
        return path_of(SERVICES, self.namespace, name)
