"""What Events tell of a pod whose status is silent: volumes that do not come, probes that made the kubelet act."""

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo_operator.causes.cause import Cause, Object
from octavo_operator.causes.workloads import STARTUP_TIMEOUT

_MISSING = re.compile(
    r'(secret|configmap) "[^"]*" not found|references non-existent (secret|config) key|'
    r"couldn't find key|object \S+ not registered",
    re.IGNORECASE,
)
_HOLDING = frozenset({"FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox"})
_PROBE_FAILED = re.compile(r"failed (liveness|startup) probe")


def event_cause(events: Sequence[Object], held: bool, killed: bool) -> Cause | None:
    """The cause that the newest Event with a meaning in the pod's present state tells.

    Args:
        held: the pod has no sandbox yet; only then what keeps it from one still counts.
        killed: the kubelet ended the container's last run; only then a failed liveness or startup probe counts.
    """
    for event in sorted(events, key=_last_seen, reverse=True):
        reason, words = event.get("reason", ""), event.get("message", "")
        if held:
            cause = _holding_cause(reason, words)
        elif killed and (probe := _PROBE_FAILED.search(words)):
            cause = _probe_cause(probe[1])
        else:
            cause = _unanswered_cause(reason, words) if not killed else None
        if cause:
            return cause
    return None


def _last_seen(event: Object) -> str:
    """Times of one format and zone: text order is time order."""
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


def _holding_cause(reason: str, words: str) -> Cause | None:
    if reason not in _HOLDING:
        return None
    if _MISSING.search(words):
        return Cause("ConfigurationMissing", f"create the Secret or ConfigMap, or its key: {words}", final=True)
    if reason == "FailedCreatePodSandBox":
        remedy = "the node cannot make the pod: see template.runtimeClassName and the node's network"
        return Cause("PodSandboxFailed", f"{remedy}: {words}", final=False)
    return Cause("VolumeMountFailed", f"a volume does not come: see its claim and storage class: {words}", final=False)


def _probe_cause(probe: str) -> Cause:
    if probe == "startup":
        words = "the replica did not serve within startupSeconds and was restarted: raise startupSeconds, or give it "
        return Cause(STARTUP_TIMEOUT, f"{words}more CPU or faster storage; see kubectl logs --previous", final=True)
    words = "the engine stopped answering /livez and was restarted: see kubectl logs --previous for its stacks"
    return Cause("LivenessFailed", words, final=False)


def _unanswered_cause(reason: str, words: str) -> Cause | None:
    if reason == "NodeNotReady":
        return Cause("NodeNotReady", f"the replica's node does not answer: see kubectl describe node: {words}", False)
    if reason == "Unhealthy" and words.startswith(("Readiness", "Liveness")):
        return Cause("NotAnswering", f"the replica served before and does not answer its probe now: {words}", False)
    return None
