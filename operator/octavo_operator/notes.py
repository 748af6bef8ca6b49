"""What is worth an Event: the differences between the status that was and the one that is, in words. Pure.

Nothing is remembered here: what status already says is not told again, also not after a restart of the operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from octavo_operator.field_owners import additions
from octavo_operator.observed import Observed, Ownership, ownership

Status = dict[str, Any]
Object = dict[str, Any]


@dataclass(frozen=True)
class Note:
    """One thing to tell.

    Attributes:
        standing: it holds rather than happens; told once, and again only after an hour without it.
    """

    reason: str
    message: str
    warning: bool = False
    standing: bool = False


def changes(before: Status, after: Status) -> list[Note]:
    """What happened between two statuses of one service, the most important first."""
    was, now = _conditions(before), _conditions(after)
    return [
        *_stalled(was.get("Stalled"), now.get("Stalled")),
        *_rollout(before.get("rollout", {}), after.get("rollout", {})),
        *_scaled(before, after),
        *_loaded(was, now, after),
        *_lost(was, now),
    ]


def put_back(child: str, path: str) -> Note:
    """A field of ours that someone changed and that was set again."""
    return Note("DriftCorrected", f"{child}: {path} was changed by someone else and is put back", warning=True)


def kept(observed: Observed) -> list[Note]:
    """Fields that others have added to children of ours."""
    ours = [live for live in observed.children.values() if ownership(live, observed.resource) is Ownership.OURS]
    return [left_alone(named(live), found) for live in ours if live and (found := additions(live))]


def named(live: Object) -> str:
    """An object as people call it."""
    return f"{live['kind']} {live['metadata']['name']}"


def left_alone(child: str, additions: Iterable[str]) -> Note:
    """Fields that others added to a child."""
    return Note("AdditionsKept", f"{child}: others set {', '.join(additions)}; Octavo leaves that alone", standing=True)


def _conditions(status: Status) -> dict[str, Status]:
    return {item["type"]: item for item in status.get("conditions", ())}


def _stalled(was: Status | None, now: Status | None) -> list[Note]:
    if now and (was is None or was["reason"] != now["reason"]):
        return [Note(now["reason"], now.get("message", ""), warning=True)]
    if was and now is None:
        return [Note("Recovered", f"what held the service up is over ({was['reason']})")]
    return []


def _rollout(was: Status, now: Status) -> list[Note]:
    if not now or (was.get("phase"), was.get("revision")) == (now.get("phase"), now.get("revision")):
        return []
    phase, revision, words = (str(now.get(key, "")) for key in ("phase", "revision", "message"))
    words = words if revision in words else f"revision {revision}: {words}"
    return [Note(f"Rollout{phase}", words, phase == "Refused")]


def _scaled(before: Status, after: Status) -> list[Note]:
    """Decisions that were not there before; oldest first, as they happened."""
    known = _decisions(before)
    fresh = [item for item in reversed(_decisions(after)) if item not in known]
    return [
        Note(
            "ScaledUp" if item["toReplicas"] > item["fromReplicas"] else "ScaledDown",
            f"{item['fromReplicas']} -> {item['toReplicas']} replicas: {item['message']}",
        )
        for item in fresh
    ]


def _decisions(status: Status) -> list[Status]:
    return list(status.get("scaling", {}).get("decisions", ()))


def _loaded(was: dict[str, Status], now: dict[str, Status], after: Status) -> list[Note]:
    if now.get("ModelReady", {}).get("status") != "True" or was.get("ModelReady", {}).get("status") == "True":
        return []
    seconds = after.get("loadSeconds")
    words = "" if seconds is None else f", the slowest replica after {seconds} s"
    return [Note("ModelLoaded", f"{after.get('modelName', 'the model')} is loaded and answers{words}")]


def _lost(was: dict[str, Status], now: dict[str, Status]) -> list[Note]:
    """Whoever is served notices that nobody is any more; a count set to zero is no loss."""
    ready = now.get("Ready", {})
    if was.get("Ready", {}).get("status") != "True" or ready.get("status") == "True":
        return []
    planned = ready.get("reason") == "ScaledToZero"
    return [Note("NoLongerServing", f"{ready.get('reason')}: {ready.get('message', '')}", warning=not planned)]
