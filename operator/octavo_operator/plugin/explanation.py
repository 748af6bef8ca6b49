"""`kubectl octavo explain`: why this many replicas, and why not ready. Pure: objects in, lines of text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from octavo_operator.causes import pod_cause
from octavo_operator.counted import counted
from octavo_operator.plugin.status_view import ago, conditions

Object = dict[str, Any]


def explain(service: Object, pods: Iterable[Object]) -> Iterator[str]:
    """The story of a service, from what it is to what to do."""
    known = conditions(service)
    if not known:
        yield "No operator has looked at this service yet."
        yield "  Does one serve its namespace? kubectl get pods -A -l app.kubernetes.io/name=octavo-operator"
        return
    yield from _readiness(service, known)
    yield ""
    yield from _replicas(service, known)
    yield ""
    yield from _pods(list(pods))


def _readiness(service: Object, known: dict[str, Object]) -> Iterator[str]:
    ready = known.get("Ready", {})
    yield f"Is it ready? {_answer(ready)}"
    for kind in ("Stalled", "Reconciling"):
        if kind in known and known[kind].get("message") != ready.get("message"):
            yield f"  {kind}: {known[kind]['reason']}: {known[kind]['message']}"
    if "Stalled" in known:
        yield "  Waiting does not help here: change what the message names, and apply again."
    elif "Reconciling" in known:
        yield "  It needs only time."
    generation, seen = service["metadata"].get("generation"), service.get("status", {}).get("observedGeneration")
    if generation != seen:
        yield f"  The operator has seen generation {seen} of {generation}: the last change is still to be looked at."
    for kind in ("ModelReady", "MetricsAvailable", "MonitoringConfigured"):
        if kind in known and known[kind]["status"] != "True":
            yield f"  {kind} is {known[kind]['status']}: {known[kind]['message']}"


def _replicas(service: Object, known: dict[str, Object]) -> Iterator[str]:
    spec, status = service["spec"], service.get("status", {})
    why = f"Why {counted(status.get('desiredReplicas', 0), 'replica')}?"
    wish = spec.get("autoscaling")
    if wish is None:
        where = "spec.replicas" if "replicas" in spec else "the default: neither replicas nor autoscaling is set"
        yield f"{why} Because of {where}."
        return
    if wish.get("mode") == "External":
        yield f"{why} autoscaling.mode is External: another autoscaler writes spec.replicas."
        return
    bounds = f"between {wish.get('minReplicas', 1)} and {wish.get('maxReplicas')}"
    yield f"{why} Octavo scales on queue depth, {bounds}."
    if queue := status.get("queue"):
        yield f"  Last seen: {queue['waiting']} waiting, {queue['running']} running."
        if "limiter" in queue:
            yield f"  Limited by {queue['limiter']}: {queue['message']}"
    limited = known.get("ScalingLimited", {})
    if limited.get("status") == "True":
        yield f"  Held back: {limited['message']}."
    decisions = status.get("scaling", {}).get("decisions", ())
    if not decisions:
        yield "  The count was not changed since the operator has known this service."
    for item in decisions:
        change = f"{item['fromReplicas']} -> {item['toReplicas']}"
        yield f"  {ago(item['time'])} ago {change}: {item['message']}"


def _pods(pods: list[Object]) -> Iterator[str]:
    if not pods:
        yield "There are no pods."
        return
    yield "The pods:"
    for pod in pods:
        cause = pod_cause(pod)
        ready = any(
            item["type"] == "Ready" and item["status"] == "True" for item in pod.get("status", {}).get("conditions", ())
        )
        state = "serves" if ready else pod.get("status", {}).get("phase", "Unknown").lower()
        if "deletionTimestamp" in pod["metadata"]:
            state = "finishes its requests and goes"
        yield f"  {pod['metadata']['name']}: {state}" + (f", {cause.reason}: {cause.message}" if cause else "")


def _answer(ready: Object) -> str:
    word = {"True": "Yes", "False": "No"}.get(ready.get("status", ""), "Not known")
    return f"{word}. {ready.get('reason', '')}: {ready.get('message', '')}"
