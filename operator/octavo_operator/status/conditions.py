"""The conditions, each from the facts it speaks of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from octavo_operator.autoscaling import Limit
from octavo_operator.causes import STARTUP_TIMEOUT, Cause
from octavo_operator.counted import counted, serving
from octavo_operator.observed import Observed
from octavo_operator.rollout import Phase, Rollout
from octavo_operator.spec import Spec
from octavo_operator.status.telemetry import Telemetry
from octavo_operator.words import plain

Condition = dict[str, Any]
_MAX_MESSAGE = 1800

MODEL_REASONS = frozenset(
    {"ModelNotFound", "ModelAccessDenied", "ModelSourceUnreachable", "ModelChanged", "ModelCorrupt", "DiskFull"}
    | {"ModelUnsupported", "CheckpointInvalid", "PvcNotFound", "PvcPending"}
)
"""Reasons that speak of the model itself."""


@dataclass(frozen=True)
class Facts:
    """What all conditions are made from.

    Attributes:
        serving: replicas that answer; desired: replicas that shall.
        cause: the one thing to look at first.
    """

    spec: Spec
    observed: Observed
    telemetry: Telemetry
    rollout: Rollout
    cause: Cause | None

    @property
    def desired(self) -> int:
        """Replicas that are wanted."""
        return self.telemetry.desired

    @property
    def serving(self) -> int:
        """Replicas that answer requests."""
        return sum(pod.ready for pod in self.observed.pods)


def all_conditions(facts: Facts) -> list[Condition]:
    """Every condition that applies, not yet stamped."""
    return [
        ready(facts),
        *progress(facts),
        model_ready(facts),
        workload(facts),
        metrics(facts.telemetry),
        *scaling_limited(facts.spec, facts.telemetry.limited),
        monitoring(facts.spec, facts.observed),
    ]


def condition(kind: str, status: str, reason: str, message: str) -> Condition:
    """One condition, not yet stamped."""
    return {"type": kind, "status": status, "reason": reason, "message": plain(message, _MAX_MESSAGE)}


def stamped(conditions: list[Condition], resource: dict[str, Any], now: str) -> list[Condition]:
    """Adds generation and time; the time of a condition whose status did not change stays."""
    before = {item["type"]: item for item in resource.get("status", {}).get("conditions", ())}
    generation = resource["metadata"]["generation"]
    for item in conditions:
        old = before.get(item["type"], {})
        same = old.get("status") == item["status"]
        item["observedGeneration"] = generation
        item["lastTransitionTime"] = old.get("lastTransitionTime", now) if same else now
    return conditions


def first_cause(observed: Observed, rollout: Rollout, blocked: Iterable[Cause], enough: bool) -> Cause | None:
    """The one thing to look at first: what blocks children, then the new revision's check, then pods.

    Args:
        enough: as many replicas serve as shall; pods that ended are then no matter any more.
    """
    starting = [pod.cause for pod in observed.pods if pod.cause and pod.starting]
    ended = [pod.cause for pod in observed.pods if pod.cause and pod.finished and not enough]
    deployed = [observed.workload.cause] if observed.workload and observed.workload.cause else []
    late = [cause for cause in deployed if cause.reason == STARTUP_TIMEOUT]
    check = [rollout.cause] if rollout.cause else []
    # What waiting cannot cure says more than what it can; of pods, one that starts tells what is wrong now.
    told = [*blocked, *check, *(cause for cause in deployed if cause not in late), *starting, *ended]
    return next(iter([*sorted(told, key=lambda cause: not cause.final), *late]), None)


def ready(facts: Facts) -> Condition:
    """Whether requests are answered; also true where none shall be, as a tool that waits for the spec expects."""
    spec, cause = facts.spec, facts.cause
    paused = " (paused: changes are not applied)" if spec.paused else ""
    if facts.serving:
        words = serving(facts.serving, facts.desired) + paused
        return condition("Ready", "True", "Serving", f"{words}; {cause.message}" if cause else words)
    if cause:
        return condition("Ready", "False", cause.reason, cause.message + paused)
    if facts.desired == 0:
        words = f"as asked, no replica serves: raise spec.replicas to serve{paused}"
        return condition("Ready", "True", "ScaledToZero", words)
    if spec.paused:
        return condition("Ready", "False", "Paused", "spec.paused is true: set it to false to let Octavo act")
    if facts.rollout.phase in _WAITING:
        return condition("Ready", "False", _WAITING[facts.rollout.phase], facts.rollout.words)
    return condition("Ready", "False", "Starting", "replicas are starting and loading the model")


_WAITING = {Phase.CHECKING: "CheckingRevision", Phase.LOADING: "FetchingModel"}


def progress(facts: Facts) -> list[Condition]:
    """Reconciling or Stalled, or neither."""
    if cause := facts.cause:
        kind = "Stalled" if cause.final else "Reconciling"
        return [condition(kind, "True", cause.reason, cause.message)]
    under_way = _under_way(facts)
    return [condition("Reconciling", "True", *under_way)] if under_way else []


def _under_way(facts: Facts) -> tuple[str, str] | None:
    """What only needs time, as reason and words; what waits for the end of `paused` is not under way."""
    rollout, deployed = facts.rollout, facts.observed.workload
    if rollout.phase is Phase.PAUSED or (facts.spec.paused and deployed is None):
        return None
    if rollout.phase in _WAITING:
        return _WAITING[rollout.phase], rollout.words
    if deployed is None:
        return "Creating", "the service's objects are being made"
    if deployed.rolling or rollout.phase is Phase.ROLLING:
        return "RollingOut", rollout.words
    if facts.serving != facts.desired or deployed.replicas != facts.desired:
        return "Scaling", serving(facts.serving, facts.desired)
    return None


def model_ready(facts: Facts) -> Condition:
    """Whether a replica has loaded the model."""
    if facts.serving:
        return condition("ModelReady", "True", "Loaded", "the model is loaded and answers")
    if facts.cause and facts.cause.reason in MODEL_REASONS:
        return condition("ModelReady", "False", facts.cause.reason, facts.cause.message)
    if any(pod.fetching for pod in facts.observed.pods) or facts.rollout.phase is Phase.LOADING:
        words = "the model is being fetched: status.model tells how far"
        return condition("ModelReady", "False", "FetchingModel", words)
    return condition("ModelReady", "Unknown", "NotLoaded", "no replica has loaded the model yet")


def workload(facts: Facts) -> Condition:
    """Whether replicas serve, and how many."""
    words, cause = serving(facts.serving, facts.desired), facts.cause
    if facts.desired and facts.serving >= facts.desired:
        return condition("WorkloadAvailable", "True", "AllReplicasReady", words)
    reason = cause.reason if cause else "ScaledToZero" if facts.desired == 0 else "ReplicasStarting"
    status = "True" if facts.serving else "False"
    return condition("WorkloadAvailable", status, reason, f"{words}: {cause.message}" if cause else words)


def metrics(telemetry: Telemetry) -> Condition:
    """Whether the replicas report their load."""
    if not telemetry.ready:
        words = "no replica is ready to be asked for its load"
        return condition("MetricsAvailable", "Unknown", "NoReadyReplicas", words)
    ready = counted(telemetry.ready, "ready replica reports its", "ready replicas report their")
    words = f"{telemetry.answered} of {ready} load"
    if telemetry.answered == telemetry.ready:
        return condition("MetricsAvailable", "True", "AllReplicasReport", words)
    reason = "SomeReplicasSilent" if telemetry.answered else "NoData"
    held = "" if telemetry.answered else "; the replica count is held"
    return condition("MetricsAvailable", "False", reason, f"{words}{held}: {telemetry.no_data}")


_LIMIT_WORDS = {
    Limit.MAX_REPLICAS: "the load asks for more replicas than autoscaling.maxReplicas allows: raise it",
    Limit.UNSCHEDULABLE: "no node takes the replica that was added: none is added until one does",
    Limit.FAILING: "the replica that was added does not start: none is added until it does",
    Limit.STEP: "more replicas follow: the count at most doubles, or rises by four, in 15 s",
}


def scaling_limited(spec: Spec, limited: Limit | None) -> list[Condition]:
    """Whether something holds the count below what the load asks for; absent where Octavo does not scale."""
    if spec.scaler is None:
        return []
    if limited is None:
        return [condition("ScalingLimited", "False", "NotLimited", "the replica count follows the load")]
    return [condition("ScalingLimited", "True", limited.value, _LIMIT_WORDS[limited])]


def monitoring(spec: Spec, observed: Observed) -> Condition:
    """Whether Prometheus finds the replicas."""
    if not spec.monitoring.pod_monitor:
        words = "no PodMonitor is wanted (spec.monitoring.podMonitor): a Prometheus has to find the replicas by itself"
        return condition("MonitoringConfigured", "True", "PodMonitorNotWanted", words)
    if observed.monitoring_available:
        words = "Prometheus finds the replicas by a PodMonitor"
        return condition("MonitoringConfigured", "True", "PodMonitorApplied", words)
    words = (
        "the kinds PodMonitor and PrometheusRule are not installed; once they are (Prometheus Operator), they are used "
    )
    words += "within minutes"
    return condition("MonitoringConfigured", "False", "PodMonitorKindMissing", words)
