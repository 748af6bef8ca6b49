"""Why a Deployment or a Job makes no progress, in its own account."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_operator.causes.cause import Cause, Object, cleaned, conditions_of

STARTUP_TIMEOUT = "StartupTimeout"
"""A Deployment's word for every replica that does not come: what the replica's pod says is closer to the cause."""


def workload_cause(live: Object) -> Cause | None:
    """Why a Deployment makes no progress; None while it does."""
    conditions = conditions_of(live)
    failure = conditions.get("ReplicaFailure", {})
    if failure.get("status") == "True":
        return cleaned(refusal(failure.get("message", "")))
    if conditions.get("Progressing", {}).get("reason") == "ProgressDeadlineExceeded":
        words = "a new replica did not serve within startupSeconds: raise it if the model loads slowly; see its log"
        return Cause(STARTUP_TIMEOUT, words, final=True)
    return None


def refusal(words: str) -> Cause:
    """The API server's refusal of a pod."""
    if "exceeded quota" in words or "failed quota" in words:
        remedy = "the namespace's quota is used up: raise it, lower resources, or set what it asks for"
        return Cause("QuotaExceeded", f"{remedy}: {words}", final=True)
    if "error looking up service account" in words:
        return Cause("WaitingForServiceAccount", f"the pods' service account comes first: {words}", final=False)
    remedy = "an admission policy of the cluster refuses the pods: change the spec or the policy"
    return Cause("PodsRefused", f"{remedy}: {words}", final=True)


def podless(job: Object) -> bool:
    """Whether a Job has no pod although it should: why, only Events about it tell."""
    status = job.get("status", {})
    counted = any(status.get(count) for count in ("active", "succeeded", "failed", "terminating"))
    return not counted and not conditions_of(job)


def job_cause(job: Object, pods: Sequence[Cause | None], events: Sequence[Object] = ()) -> Cause | None:
    """Why a preflight or loader Job does not end well; None while it may.

    Args:
        pods: causes of its pods, the newest pod last.
        events: core/v1 Events about the Job, which alone say why it has no pod.
    """
    failed = conditions_of(job).get("Failed", {})
    told = next((cause for cause in reversed(pods) if cause), None)
    if failed.get("status") != "True":
        refused = [event for event in events if event.get("reason") == "FailedCreate"] if not pods else []
        return cleaned(refusal(refused[-1].get("message", ""))) if refused else told
    if told:
        return Cause(told.reason, told.message, final=True)
    name, words = job["metadata"]["name"], failed.get("message", "")
    reason = "DeadlineExceeded" if failed.get("reason") == "DeadlineExceeded" else "JobFailed"
    return cleaned(Cause(reason, f"see kubectl logs job/{name}: {words}", final=True))
