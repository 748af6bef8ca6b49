"""What to write into `status`: conditions and figures from what was observed, planned and decided. Pure.

`Reconciling` and `Stalled` follow kstatus: present and True, or absent. They exclude each other: either waiting helps
or a person must act. Every reason is one word to act on; the message holds the cluster's own words.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from octavo_operator import engine_args, names
from octavo_operator.autoscaling import Decision, Limit
from octavo_operator.causes import Cause
from octavo_operator.manifests import url
from octavo_operator.observed import Observed
from octavo_operator.spec import Spec

Condition = dict[str, Any]
KEPT_DECISIONS = 5
_MAX_MESSAGE = 1800

MODEL_REASONS = frozenset({"ModelNotFound", "ModelUnsupported", "CheckpointInvalid", "PvcNotFound", "PvcPending"})


@dataclass(frozen=True)
class QueueFigures:
    """Load of all replicas together, as last published."""

    waiting: int = 0
    running: int = 0


@dataclass(frozen=True)
class Telemetry:
    """What scraping and scaling know of a service.

    Attributes:
        ready: ready replicas at the last sample; answered: those of them with data. None before the first sample.
        limited: what holds the replica count below what the load asks for.
        victim: pod to go first while the count is being lowered.
        decisions: records of the last changes, newest first.
    """

    desired: int
    ready: int | None = None
    answered: int = 0
    no_data: str = ""
    queue: QueueFigures | None = None
    load_seconds: float | None = None
    limited: Limit | None = None
    victim: str | None = None
    decisions: tuple[dict[str, Any], ...] = ()


def describe(
    spec: Spec, observed: Observed, telemetry: Telemetry, blocked: Iterable[Cause], now: str
) -> dict[str, Any]:
    """The whole status of a service whose spec could be read.

    Args:
        blocked: what kept children from being applied, including refusals of the API server.
        now: RFC 3339 time, used for what changed only.
    """
    resource = observed.resource
    name = resource["metadata"]["name"]
    serving = sum(pod.ready for pod in observed.pods)
    cause = _cause(observed, tuple(blocked))
    conditions = [
        _ready(spec, telemetry.desired, serving, cause),
        *_progress(observed, telemetry.desired, serving, cause),
        _model_ready(serving, cause),
        _workload(telemetry.desired, serving, cause),
        _metrics(telemetry),
        *_scaling_limited(spec, telemetry.limited),
        _monitoring(observed),
    ]
    status = {
        "observedGeneration": resource["metadata"]["generation"],
        "modelName": engine_args.served_name(spec, name),
        "url": url(resource),
        "replicas": sum(not (pod.terminating or pod.finished) for pod in observed.pods),
        "readyReplicas": serving,
        "desiredReplicas": telemetry.desired,
        "replicaSummary": f"{serving}/{telemetry.desired}",
        "selector": ",".join(f"{key}={value}" for key, value in names.selector_labels(name).items()),
        "conditions": stamped(conditions, resource, now),
    }
    if telemetry.queue:
        status["queue"] = {"waiting": telemetry.queue.waiting, "running": telemetry.queue.running}
    if telemetry.load_seconds is not None:
        status["loadSeconds"] = round(telemetry.load_seconds, 1)
    if telemetry.decisions:
        status["scaling"] = {"decisions": list(telemetry.decisions)}
    return status


def unreadable(resource: dict[str, Any], reason: str, message: str, now: str) -> dict[str, Any]:
    """The status of a service that could not be looked at: what was known, and why it stands still."""
    known = {key: value for key, value in resource.get("status", {}).items() if key != "conditions"}
    conditions = [condition("Ready", "Unknown", reason, message), condition("Stalled", "True", reason, message)]
    generation = resource["metadata"]["generation"]
    return known | {"observedGeneration": generation, "conditions": stamped(conditions, resource, now)}


def condition(kind: str, status: str, reason: str, message: str) -> Condition:
    """One condition, not yet stamped."""
    return {"type": kind, "status": status, "reason": reason, "message": message[:_MAX_MESSAGE]}


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


def _cause(observed: Observed, blocked: tuple[Cause, ...]) -> Cause | None:
    """The one thing to look at first: what blocks children, then pods that fail, then those that wait."""
    pods = [pod.cause for pod in observed.pods if pod.cause and pod.starting]
    workload = [observed.workload.cause] if observed.workload and observed.workload.cause else []
    # A pod's own cause says more than the Deployment's; one that waiting cannot cure says more than one that it can.
    return next(iter(sorted([*blocked, *pods, *workload], key=lambda cause: not cause.final)), None)


def _ready(spec: Spec, desired: int, serving: int, cause: Cause | None) -> Condition:
    paused = " (paused: changes are not applied)" if spec.paused else ""
    if serving:
        words = f"{serving} of {desired} replicas serve{paused}"
        return condition("Ready", "True", "Serving", f"{words}; {cause.message}" if cause else words)
    if desired == 0:
        return condition("Ready", "False", "ScaledToZero", f"spec.replicas is 0: raise it to serve{paused}")
    if cause:
        return condition("Ready", "False", cause.reason, cause.message + paused)
    if spec.paused:
        return condition("Ready", "False", "Paused", "spec.paused is true: set it to false to let Octavo act")
    return condition("Ready", "False", "Starting", f"replicas are starting and loading the model{_needs(spec)}")


def _needs(spec: Spec) -> str:
    """The kubelet waits for a missing Secret in silence: name it while nothing else is known."""
    if spec.auth is None:
        return ""
    ref = spec.auth.api_key_secret_ref
    return f"; if this lasts, see that the Secret {ref.name} exists and has the key {ref.key}"


def _progress(observed: Observed, desired: int, serving: int, cause: Cause | None) -> list[Condition]:
    if cause and cause.final:
        return [condition("Stalled", "True", cause.reason, cause.message)]
    if cause:
        return [condition("Reconciling", "True", cause.reason, cause.message)]
    workload = observed.workload
    if workload is None:
        return [condition("Reconciling", "True", "Creating", "the service's objects are being made")]
    if workload.rolling:
        return [
            condition(
                "Reconciling", "True", "RollingOut", f"{workload.updated} of {desired} replicas have the new revision"
            )
        ]
    if serving != desired or workload.replicas != desired:
        return [condition("Reconciling", "True", "Scaling", f"{serving} of {desired} replicas serve")]
    return []


def _model_ready(serving: int, cause: Cause | None) -> Condition:
    if serving:
        return condition("ModelReady", "True", "Loaded", "the model is loaded and answers")
    if cause and cause.reason in MODEL_REASONS:
        return condition("ModelReady", "False", cause.reason, cause.message)
    return condition("ModelReady", "Unknown", "NotLoaded", "no replica has loaded the model yet")


def _workload(desired: int, serving: int, cause: Cause | None) -> Condition:
    words = f"{serving} of {desired} replicas serve"
    if desired and serving >= desired:
        return condition("WorkloadAvailable", "True", "AllReplicasReady", words)
    reason = cause.reason if cause else "ScaledToZero" if desired == 0 else "ReplicasStarting"
    status = "True" if serving else "False"
    return condition("WorkloadAvailable", status, reason, f"{words}: {cause.message}" if cause else words)


def _metrics(telemetry: Telemetry) -> Condition:
    if not telemetry.ready:
        return condition(
            "MetricsAvailable", "Unknown", "NoReadyReplicas", "no replica is ready to be asked for its load"
        )
    words = f"{telemetry.answered} of {telemetry.ready} ready replicas report their load"
    if telemetry.answered == telemetry.ready:
        return condition("MetricsAvailable", "True", "AllReplicasReport", words)
    reason = "SomeReplicasSilent" if telemetry.answered else "NoData"
    held = "" if telemetry.answered else "; the replica count is held"
    return condition("MetricsAvailable", "False", reason, f"{words}{held}: {telemetry.no_data}")


_LIMIT_WORDS = {
    Limit.MAX_REPLICAS: "the load asks for more replicas than autoscaling.maxReplicas allows: raise it",
    Limit.UNSCHEDULABLE: "no node takes the replica that was added: none is added until one does",
    Limit.FAILING: "the replica that was added does not start: none is added until it does",
    Limit.STEP: "more replicas follow: the count at most doubles, or rises by two, in 15 s",
}


def _scaling_limited(spec: Spec, limited: Limit | None) -> list[Condition]:
    if spec.scaler is None:
        return []
    if limited is None:
        return [condition("ScalingLimited", "False", "NotLimited", "the replica count follows the load")]
    return [condition("ScalingLimited", "True", limited.value, _LIMIT_WORDS[limited])]


def _monitoring(observed: Observed) -> Condition:
    if observed.monitoring_available:
        return condition(
            "MonitoringConfigured", "True", "PodMonitorApplied", "Prometheus finds the replicas by a PodMonitor"
        )
    words = "the kind PodMonitor is not installed; once it is (Prometheus Operator), it is used within minutes"
    return condition("MonitoringConfigured", "False", "PodMonitorKindMissing", words)


def decision_record(decision: Decision, now: str) -> dict[str, Any]:
    """A change of the replica count as status keeps it."""
    figures = decision.inputs
    return {
        "time": now,
        "fromReplicas": decision.previous,
        "toReplicas": decision.replicas,
        "reason": decision.reason.value,
        "message": f"{decision.message} (capacity {figures.capacity:.0f} per replica, "
        f"oldest wait {figures.oldest_wait_seconds:.1f} s)",
    }
