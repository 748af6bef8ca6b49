"""Which pod template a service's replicas shall have, and how the next one gets there. Pure: no client, no clock.

A revision that is not active first passes a preflight Job, then the loader's where there is a cache, and only then
becomes active; until that, and if it fails, the replicas keep the template they have. Nothing is remembered but what
the cluster holds: the Deployment says what runs, the ConfigMap what every revision's template is and which one is
active, the Jobs how far a check has come. The Deployment follows what the ConfigMap *says*, never what it is about to
say: so the operator may end between any two writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from octavo_operator.causes import Cause
from octavo_operator.checkpoint import Checkpoint, read_report
from octavo_operator.counted import counted
from octavo_operator.drift import drift
from octavo_operator.manifests import CONFIG_MAP, DEPLOYMENT, Manifest, pod_template
from octavo_operator.observed import Job, Observed, Outcome, Ownership, Purpose, Workload, ownership
from octavo_operator.revisions import History, Revision, read_history, revision_of
from octavo_operator.spec import Spec

UNRECORDED = "unrecorded"
"""Name of the revision of a Deployment that does not say which it is."""

_VAGUE = frozenset({"DeadlineExceeded", "JobFailed"})  # what is left to say when a Job's pods are gone


class Phase(Enum):
    """How far the wanted revision is."""

    CHECKING = "Checking"  # its preflight runs
    LOADING = "Loading"  # its model is fetched into the cache
    REFUSED = "Refused"  # its preflight or its loader failed
    ROLLING = "Rolling"  # it is active, and not all replicas have it and serve
    COMPLETE = "Complete"
    PAUSED = "Paused"  # nothing is changed, by the user's wish


@dataclass(frozen=True)
class Rollout:
    """Where a service is on its way to its spec.

    Attributes:
        revision: of the spec.
        active: the one whose template the replicas have or get; None before the first.
        words: the phase for people.
        cause: why it does not get on.
        in_place: an old replica stops before a new one starts.
        template: of the Deployment's pods; None while there shall be no Deployment.
        jobs: those that the revision needs now.
        checkpoint: what the wanted revision's preflight found; None while it is not known.
        store: source and endpoint of the model of the active revision, if that is fetched.
        history: what the ConfigMap shall say.
    """

    phase: Phase
    revision: str
    active: str | None = None
    words: str = ""
    cause: Cause | None = None
    in_place: bool = False
    template: Manifest | None = None
    jobs: tuple[Purpose, ...] = ()
    checkpoint: Checkpoint | None = None
    store: tuple[str, str | None] | None = None
    history: History = field(default_factory=History)


def decide(spec: Spec, observed: Observed, image: str) -> Rollout:
    """What the Deployment's template, the ConfigMap and the Jobs shall be.

    Args:
        image: of the engine, for a spec that names none and a revision that is new.
    """
    wanted = revision_of(spec)
    history = _recorded(spec, observed, image, wanted)
    if (history.active is None or _nothing_runs(observed)) and not spec.model.remote and not spec.paused:
        # There is nothing that a check could protect, and the engine itself says as well what is wrong.
        kept = history.revisions.get(wanted) or Revision(pod_template(spec, _parent(observed), image, wanted))
        history = replace(history.keeping(wanted, kept), active=wanted)
    if history.active == wanted:
        made = _active(observed, history)
    elif spec.paused:
        made = Rollout(Phase.PAUSED, wanted, words="spec.paused is true: changes wait", history=history)
    else:
        made = _candidate(spec, observed, image, wanted, history)
    running = history.revisions.get(history.active or "")
    return replace(
        made,
        active=history.active,
        in_place=_in_place(spec, observed),
        template=running.template if running else None,
        store=running.store if running else None,
        history=made.history.pruned([wanted, history.active or ""]),
    )


def _recorded(spec: Spec, observed: Observed, image: str, wanted: str) -> History:
    """What is known of the service's revisions, with the active one among them."""
    live = observed.children.get(CONFIG_MAP)
    ours = live is not None and ownership(live, observed.resource) is Ownership.OURS
    history = read_history((live or {}).get("data") or {}) if ours else History()
    if history.refused and history.refused[0] != wanted:
        history = replace(history, refused=None)
    workload = observed.workload
    if workload is None:
        return history
    running = workload.revision or _unnamed(observed, wanted)
    if running != wanted and history.active == wanted:
        return history  # the Deployment is yet to follow
    if running not in history.revisions:
        kept = Revision(_template_of(spec, observed, image, running == wanted))
        history = History(running, {running: kept, **history.revisions}, history.refused)
    return replace(history, active=running)


def _unnamed(observed: Observed, wanted: str) -> str:
    """The revision of a Deployment that an operator without revisions made, if that had seen the spec as it is."""
    seen = observed.resource.get("status", {}).get("observedGeneration")
    return wanted if seen == observed.resource["metadata"]["generation"] else UNRECORDED


def _template_of(spec: Spec, observed: Observed, image: str, wanted: bool) -> Manifest:
    """The running template, whose record is lost.

    Where rendering gives the same, what is rendered is taken: it has our fields alone. Otherwise an older operator
    has rendered what runs, and taking it as it is restarts nothing.
    """
    live: Manifest = (observed.children.get(DEPLOYMENT) or {})["spec"]["template"]
    if wanted and not spec.model.remote:
        rendered = pod_template(spec, _parent(observed), image)
        if drift(rendered, live) is None:
            return rendered
    made: Manifest = _without_nulls(live)
    return made


def _candidate(spec: Spec, observed: Observed, image: str, wanted: str, history: History) -> Rollout:
    """The next step of a revision that is not active yet."""
    kept = history.revisions.get(wanted)
    jobs: tuple[Purpose, ...] = ()
    if kept is None or not kept.checked:
        preflight = observed.job(Purpose.PREFLIGHT, wanted)
        jobs = (Purpose.PREFLIGHT,)  # until what it found is recorded
        checkpoint = _found(spec, preflight)
        if checkpoint is None:
            return _held(Phase.CHECKING, wanted, history, jobs, _unreported(preflight))
        store = (spec.model.source, spec.model.endpoint) if spec.model.remote else None
        kept = Revision(pod_template(spec, _parent(observed), image, wanted, checkpoint), True, checkpoint, store)
        history = history.keeping(wanted, kept)
    if spec.cache:
        loader = observed.job(Purpose.LOADER, wanted)
        jobs = (*jobs, Purpose.LOADER)
        if loader is None or loader.outcome is not Outcome.PASSED:
            return replace(_held(Phase.LOADING, wanted, history, jobs, loader), checkpoint=kept.checkpoint)
    return Rollout(
        Phase.ROLLING,
        wanted,
        words=f"revision {wanted} has passed its check and becomes active",
        jobs=jobs,
        checkpoint=kept.checkpoint,
        history=replace(history, active=wanted, refused=None),
    )


def _found(spec: Spec, preflight: Job | None) -> Checkpoint | None:
    """What a passed preflight reports; nothing counts for a model that is read in place."""
    if preflight is None or preflight.outcome is not Outcome.PASSED:
        return None
    return read_report(preflight.report) or (None if spec.model.remote else Checkpoint())


def _unreported(preflight: Job | None) -> Job | None:
    """A preflight that passed and told nothing, although its report is needed, has not helped."""
    if preflight is None or preflight.outcome is not Outcome.PASSED:
        return preflight
    words = "the engine image's preflight reports nothing: use an image of this version, or delete the Job to try again"
    return replace(preflight, cause=Cause("PreflightReportMissing", words, final=True))


def _held(phase: Phase, wanted: str, history: History, jobs: tuple[Purpose, ...], job: Job | None) -> Rollout:
    """A revision whose Job has not passed. A refusal stands until the Job, made anew meanwhile, passes."""
    cause, refusal = job.cause if job else None, history.why_refused(wanted)
    if cause and cause.final and not (refusal and cause.reason in {*_VAGUE, refusal.reason}):
        refusal = cause  # otherwise the first words are kept: others would be newer, not better
    if refusal:
        phase, cause = Phase.REFUSED, refusal
        history = replace(history, refused=(wanted, refusal))
    words = _WAITING_WORDS[phase].format(revision=wanted) + (f": {cause.message}" if cause else "")
    return Rollout(phase, wanted, words=words, cause=cause, jobs=jobs, history=history)


_WAITING_WORDS = {
    Phase.CHECKING: "revision {revision} is being checked before a replica gets it",
    Phase.LOADING: "the model of revision {revision} is being fetched into the cache",
    Phase.REFUSED: "revision {revision} does not pass its check, the replicas stay as they are",
}


def _active(observed: Observed, history: History) -> Rollout:
    """The wanted revision is the active one: what is left is Kubernetes' part."""
    wanted = str(history.active)
    workload = observed.workload
    phase = Phase.ROLLING
    if workload is None or workload.revision != wanted:
        words = f"revision {wanted} is being given to the replicas"
    elif workload.rolling:
        how = "in place, one after another" if workload.in_place else "a new replica serves before an old one goes"
        replicas = counted(workload.desired, "replica has", "replicas have")
        words = f"{workload.updated} of {replicas} revision {wanted}: {how}"
    elif workload.desired and not workload.arrived:
        words = f"all replicas have revision {wanted} and start"
    else:
        phase, words = Phase.COMPLETE, f"all replicas have revision {wanted}"
    checkpoint = history.revisions[wanted].checkpoint
    return Rollout(phase, wanted, words=words, checkpoint=checkpoint, history=replace(history, refused=None))


def _nothing_runs(observed: Observed) -> bool:
    """A service that is scaled to zero: no pod is there, and none is on its way."""
    workload = observed.workload
    return workload is not None and workload.desired == workload.replicas == 0 and not observed.pods


def _in_place(spec: Spec, observed: Observed) -> bool:
    """Whether an old replica makes room first.

    Auto does so from the moment that a new replica finds no room until the rollout's end. Only room that others hold
    counts: a replica that fits no node at all would not come up on an empty one either.
    """
    if spec.rollout != "Auto":
        return spec.rollout == "InPlace"
    workload: Workload | None = observed.workload
    if workload is None or not workload.rolling:
        return False
    return workload.in_place or any(pod.starting and pod.crowded_out for pod in observed.pods)


def _parent(observed: Observed) -> str:
    return str(observed.resource["metadata"]["name"])


def _without_nulls(value: Any) -> Any:
    """What the API server writes as null it means as absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
