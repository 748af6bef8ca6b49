"""What the cluster has for one service: raw objects read into small values. Pure: no client, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo_operator.names import Kind
from octavo_operator.observed.jobs import Job, Outcome, Purpose, read_jobs
from octavo_operator.observed.ownership import Ownership, ownership
from octavo_operator.observed.pods import Pod, read_pod
from octavo_operator.observed.workload import Workload, read_workload

__all__ = [
    "Job",
    "Observed",
    "Outcome",
    "Ownership",
    "Pod",
    "Purpose",
    "Workload",
    "ownership",
    "read_jobs",
    "read_pod",
    "read_workload",
]


@dataclass(frozen=True)
class Observed:
    """Everything a decision about one service looks at.

    Attributes:
        children: by kind, those of which there is one.
        jobs: those that are ours.
        workload: the Deployment, if it is ours.
    """

    resource: dict[str, Any]
    children: Mapping[Kind, dict[str, Any] | None] = field(default_factory=dict)
    pods: tuple[Pod, ...] = ()
    workload: Workload | None = None
    monitoring_available: bool = False
    jobs: tuple[Job, ...] = ()

    @property
    def rolling(self) -> bool:
        """A rollout is under way."""
        return self.workload is not None and self.workload.rolling

    @property
    def unexplained(self) -> tuple[Pod | Job, ...]:
        """What waits for something that only Events tell, so that no change of a watched object will announce it."""
        podless = [job for job in self.jobs if job.outcome is Outcome.RUNNING and not job.pods]
        return (*podless, *(pod for pod in self._everywhere if pod.unexplained))

    @property
    def fetching(self) -> tuple[Pod, ...]:
        """Pods, of replicas and of Jobs, in which a model is being fetched."""
        return tuple(pod for pod in self._everywhere if pod.fetching and pod.ip)

    @property
    def _everywhere(self) -> tuple[Pod, ...]:
        return (*self.pods, *(pod for job in self.jobs for pod in job.pods))

    def job(self, purpose: Purpose, revision: str) -> Job | None:
        """The Job of a revision."""
        return next((job for job in self.jobs if (job.purpose, job.revision) == (purpose, revision)), None)
