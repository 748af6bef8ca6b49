"""A whole operator without API server: fake cluster, real scaler and reconciler, and a clock that the test moves."""

from __future__ import annotations

import itertools
from typing import Any

from prometheus_client import CollectorRegistry

from fake_cluster import FakeCluster
from octavo_operator.autoscaling import Load
from octavo_operator.checkpoint import Progress
from octavo_operator.desired import Defaults
from octavo_operator.events import Recorder
from octavo_operator.manifests import DEPLOYMENT
from octavo_operator.metrics import Metrics
from octavo_operator.names import Key
from octavo_operator.observed import Observed
from octavo_operator.reconcile import Reconciler
from octavo_operator.scaler import Scaler
from octavo_operator.spec import Spec
from operator_samples import DEFAULTS, NOW

KEY = Key("team", "assistant")


class FakeLoads:
    """Every pod answers the same."""

    def __init__(self, answer: Load | str = "no answer") -> None:
        self.answer = answer
        self.fetches: list[Progress] = []

    async def loads(self, pods: Any) -> dict[str, Load | str]:
        return {pod.name: self.answer for pod in pods}

    async def progress(self, pods: Any) -> list[Progress]:
        return list(self.fetches)


class World:
    """One service, its cluster and its operator. `defaults` are the operator's settings: an upgrade changes them."""

    def __init__(self, parent: dict[str, Any], monitoring: bool = False) -> None:
        self.cluster = FakeCluster(parent, monitoring)
        self.loads = FakeLoads()
        self.defaults: Defaults = DEFAULTS
        self.now = 0.0
        self.crowded = False
        self.look_again: float | None = None
        self._seconds = itertools.count()
        self.restart_operator()

    def restart_operator(self) -> None:
        """A new process: all that is not in the cluster is forgotten."""
        self.metrics = Metrics(CollectorRegistry())
        self.scaler = Scaler(self.loads, self.metrics, 300.0, lambda: self.now)
        events = Recorder(self.cluster, lambda: self.now, lambda: NOW, "operator")
        self.reconciler = Reconciler(
            self.cluster,
            self.scaler,
            self.defaults,
            events,
            services=self.metrics.services,
            now=lambda: NOW,
            clock=self._passes,
            crowded=lambda key: self.crowded,
        )

    def _passes(self) -> float:
        """A first status waits for one look, and no longer."""
        return 0.6 * next(self._seconds)

    async def reconcile(self) -> list[str]:
        """One reconcile; what it wrote."""
        self.cluster.writes.clear()
        self.look_again = await self.reconciler.reconcile(KEY)
        return self.cluster.writes

    async def settle(self) -> None:
        """Reconciles until there is nothing more to do."""
        for _ in range(8):
            if not await self.reconcile():
                return
        raise AssertionError(f"still writing after eight reconciles: {self.cluster.writes}")

    async def tick(self, times: int = 1) -> set[Key]:
        """Samples of the load, five seconds apart."""
        keys: set[Key] = set()
        for _ in range(times):
            self.now += 5.0
            keys |= await self.scaler.tick()
        return keys

    def change(self, **spec: Any) -> None:
        """The user sets fields of the spec; None removes one."""
        assert self.cluster.resource is not None
        given = self.cluster.resource["spec"] | spec
        self.cluster.resource["spec"] = {key: value for key, value in given.items() if value is not None}
        self.cluster.resource["metadata"]["generation"] += 1

    def seen(self) -> tuple[Spec, Observed]:
        """Spec and observation as the last reconcile had them."""
        entry = self.scaler._entries[KEY]
        return entry.spec, entry.observed

    @property
    def deployment(self) -> dict[str, Any]:
        """The Deployment as it is."""
        return self.cluster.children[DEPLOYMENT]

    @property
    def replicas(self) -> int:
        """Replicas the Deployment asks for."""
        count: int = self.deployment["spec"]["replicas"]
        return count

    @property
    def args(self) -> list[str]:
        """The engine's arguments in the Deployment's template."""
        args: list[str] = self.deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        return args

    @property
    def phase(self) -> str:
        """The rollout's phase in status."""
        assert self.cluster.resource is not None
        phase: str = self.cluster.resource["status"]["rollout"]["phase"]
        return phase
