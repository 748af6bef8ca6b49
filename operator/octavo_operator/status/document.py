"""The whole status of one service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from octavo_operator import engine_args, names
from octavo_operator.causes import Cause
from octavo_operator.manifests import url
from octavo_operator.observed import Observed
from octavo_operator.rollout import Phase, Rollout
from octavo_operator.spec import Spec
from octavo_operator.status.conditions import (
    MODEL_REASONS,
    Facts,
    all_conditions,
    condition,
    first_cause,
    stamped,
)
from octavo_operator.status.effective import effective
from octavo_operator.status.telemetry import Telemetry
from octavo_operator.words import plain

_MAX_ROLLOUT_WORDS = 1000


def describe(
    spec: Spec, observed: Observed, rollout: Rollout, telemetry: Telemetry, blocked: Iterable[Cause], *, now: str
) -> dict[str, Any]:
    """The whole status of a service whose spec could be read.

    Args:
        blocked: what kept children from being applied, including refusals of the API server.
        now: RFC 3339 time, used for what changed only.
    """
    resource = observed.resource
    name = resource["metadata"]["name"]
    serving = sum(pod.ready for pod in observed.pods)
    cause = first_cause(observed, rollout, blocked, enough=serving >= telemetry.desired)
    facts = Facts(spec, observed, telemetry, rollout, cause)
    status = {
        "observedGeneration": resource["metadata"]["generation"],
        "modelName": engine_args.served_name(spec, name),
        "url": url(resource),
        "replicas": sum(not (pod.terminating or pod.finished) for pod in observed.pods),
        "readyReplicas": serving,
        "desiredReplicas": telemetry.desired,
        "replicaSummary": f"{serving}/{telemetry.desired}",
        "selector": ",".join(f"{key}={value}" for key, value in names.selector_labels(name).items()),
        "effective": effective(spec, rollout.template),
        "model": _model(facts),
        "rollout": _rollout(rollout),
        "conditions": stamped(all_conditions(facts), resource, now),
    }
    return status | _figures(telemetry)


def unreadable(resource: dict[str, Any], reason: str, message: str, now: str) -> dict[str, Any]:
    """The status of a service that could not be looked at: what was known, and why it stands still."""
    known = {key: value for key, value in resource.get("status", {}).items() if key != "conditions"}
    conditions = [condition("Ready", "Unknown", reason, message), condition("Stalled", "True", reason, message)]
    generation = resource["metadata"]["generation"]
    return known | {"observedGeneration": generation, "conditions": stamped(conditions, resource, now)}


def _figures(telemetry: Telemetry) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if telemetry.queue:
        queue = telemetry.queue
        figures["queue"] = {"waiting": queue.waiting, "running": queue.running}
        if queue.limiter:
            figures["queue"] |= {"limiter": queue.limiter, "message": queue.limited}
    if telemetry.load_seconds is not None:
        figures["loadSeconds"] = round(telemetry.load_seconds, 1)
    if telemetry.decisions:
        figures["scaling"] = {"decisions": list(telemetry.decisions)}
    return figures


def _rollout(rollout: Rollout) -> dict[str, Any]:
    shown = {
        "revision": rollout.revision,
        "active": rollout.active,
        "phase": rollout.phase.value,
        "message": plain(rollout.words, _MAX_ROLLOUT_WORDS),
    }
    return {key: value for key, value in shown.items() if value}


def _model(facts: Facts) -> dict[str, Any]:
    """What is known of the model that the spec names, and how far it is on its way into a replica."""
    checkpoint, progress = facts.rollout.checkpoint, facts.telemetry.progress
    phase = _model_phase(facts)
    shown = {
        "source": facts.spec.model.source,
        "phase": phase,
        "revision": checkpoint.revision if checkpoint else "",
        "bytes": checkpoint.bytes if checkpoint else 0,
    }
    found = {key: value for key, value in shown.items() if value}
    if phase == "Fetching" and progress and progress.percent is not None:
        found["percent"] = progress.percent
    return found


def _model_phase(facts: Facts) -> str:
    """Of the revision that the spec names: what serves meanwhile may be another."""
    rollout, pods = facts.rollout, facts.observed.pods
    if facts.cause and facts.cause.reason in MODEL_REASONS:
        return "Failed"
    if rollout.phase is Phase.CHECKING:
        return "Resolving"
    if rollout.phase is Phase.LOADING or any(pod.fetching for pod in pods):
        return "Fetching"
    if facts.serving:
        return "Ready"
    return "Loading" if any(pod.starting and pod.cause is None for pod in pods) else "Pending"
