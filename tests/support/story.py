"""One service on its way through revisions, as a user sees it on a real cluster."""

from __future__ import annotations

from typing import Any

from cluster_tools import wait_for
from operator_process import Services


class Story:
    """One service on its way through revisions."""

    def __init__(self, services: Services, name: str, **spec: Any) -> None:
        self.services, self.name = services, name
        self.spec: dict[str, Any] = {}
        self.change(**spec)

    def change(self, **spec: Any) -> None:
        """The user sets fields; None removes one."""
        self.spec = {key: value for key, value in (self.spec | spec).items() if value is not None}
        self.services.apply(self.name, **self.spec)

    def status(self) -> dict[str, Any]:
        """The status, once it speaks of the spec as it is; empty before."""
        document = self.services.get("osvc", self.name) or {"metadata": {"generation": 0}}
        status: dict[str, Any] = document.get("status", {})
        return status if status.get("observedGeneration") == document["metadata"]["generation"] else {}

    def reaches(self, phase: str) -> dict[str, Any]:
        """Polls until the spec's revision has come so far; returns the status."""

        def there() -> dict[str, Any] | None:
            status = self.status()
            return status if status.get("rollout", {}).get("phase") == phase else None

        return wait_for(there, f"{self.name} to be {phase}")

    def serves(self) -> set[str]:
        """Polls until the rollout is over and its replicas alone are there; returns their names."""
        self.reaches("Complete")
        self.services.wait_ready(self.name, self.spec.get("replicas", 1))
        return self.pods()

    def answers(self) -> None:
        """Polls until a replica serves: on a busy machine a probe may come late."""
        wait_for(lambda: self.services.condition(self.name, "Ready")["status"] == "True", f"{self.name} to answer")

    def stalls(self, reason: str) -> str:
        """Polls until the spec is refused for a reason; returns the words."""
        self.reaches("Refused")
        message: str = self.services.wait_condition(self.name, "Stalled", reason)["message"]
        return message

    def pods(self) -> set[str]:
        """Engine pods that are not going."""
        return set(self.services.pods(self.name))

    def jobs(self) -> list[str]:
        """Names of the service's Jobs."""
        jobs = self.services.all_of("jobs").values()
        return [job["metadata"]["name"] for job in jobs if job["metadata"]["labels"]["octavo.dev/service"] == self.name]

    def ends(self) -> None:
        """The user deletes the service; what its replicas held is free again."""
        self.services.delete(self.name)

        def gone() -> bool:
            pods = self.services.all_of("pods").values()
            return not any(pod["metadata"]["labels"].get("octavo.dev/service") == self.name for pod in pods)

        wait_for(gone, f"the end of {self.name}'s replicas")

    def container(self) -> dict[str, Any]:
        """The engine's container in the Deployment."""
        deployment = self.services.get("deployment", self.name)
        assert deployment is not None
        container: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
        return container
