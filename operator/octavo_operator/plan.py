"""What to do about one service: rendered children against live ones. Pure; each step says why in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from octavo_operator import names
from octavo_operator.causes import Cause
from octavo_operator.manifests import Manifest
from octavo_operator.names import Kind
from octavo_operator.observed import Observed, Ownership, ownership

VICTIM_COST = "-1"


@dataclass(frozen=True)
class Apply:
    """Send a manifest by server-side apply.

    Attributes:
        uid: of the live object it replaces fields of, so that another one of the same name is not hit; None to create.
    """

    manifest: Manifest
    reason: str
    uid: str | None = None


@dataclass(frozen=True)
class MarkVictim:
    """Annotate the pod that the Deployment controller shall remove first."""

    pod: str
    reason: str


Step = Apply | MarkVictim


@dataclass(frozen=True)
class Plan:
    """Steps in order, and what stands in the way of others."""

    steps: tuple[Step, ...] = ()
    blocked: tuple[Cause, ...] = ()


def make_plan(observed: Observed, children: list[Manifest], victim: str | None, paused: bool) -> Plan:
    """Compares what should be with what is.

    Args:
        children: rendered manifests, sealed.
        victim: least busy pod when the replica count is being lowered.
        paused: nothing is changed while true.
    """
    if paused:
        return Plan()
    steps: list[Step] = []
    blocked: list[Cause] = []
    for manifest in children:
        step = _child(observed, manifest)
        if isinstance(step, Apply):
            steps.append(step)
        elif step is not None:
            blocked.append(step)
    marked = {pod.name for pod in observed.pods if pod.deletion_cost == VICTIM_COST}
    if victim and victim not in marked:
        # Before the count is lowered: the controller chooses at that moment.
        steps.insert(0, MarkVictim(victim, "it is the least busy replica and one is to go"))
    return Plan(tuple(steps), tuple(blocked))


def _child(observed: Observed, manifest: Manifest) -> Apply | Cause | None:
    kind: Kind = (manifest["apiVersion"], manifest["kind"])
    live = observed.children.get(kind)
    name = f"{manifest['kind']} {manifest['metadata']['name']}"
    match ownership(live, observed.resource):
        case Ownership.ABSENT:
            return Apply(manifest, f"{name} does not exist")
        case Ownership.FOREIGN:
            return Cause("ForeignObject", f"{name} exists and belongs to someone else: delete or rename it, or rename "
                         "this InferenceService; Octavo does not adopt it", final=True)  # fmt: skip
        case Ownership.LEFTOVER:
            return Cause(
                "WaitingForCleanup", f"{name} of a deleted InferenceService is still being removed", final=False
            )
    assert live is not None
    if "deletionTimestamp" in live["metadata"]:
        return Cause("WaitingForCleanup", f"{name} is being deleted and will be made anew", final=False)
    reason = _difference(manifest, live)
    return Apply(manifest, f"{name}: {reason}", live["metadata"]["uid"]) if reason else None


def _difference(manifest: Manifest, live: Mapping[str, Any]) -> str | None:
    """Why the live object needs an apply; None when it has every field we set and we set no fewer than before."""
    annotations = live["metadata"].get("annotations", {})
    if annotations.get(names.RENDERED_ANNOTATION) != manifest["metadata"]["annotations"][names.RENDERED_ANNOTATION]:
        return "the wanted state changed"
    path = drift(manifest, live)
    return f"{path} was changed by someone else" if path else None


def drift(wanted: Any, live: Any, path: str = "") -> str | None:
    """The first field of `wanted` that `live` does not have, as a dotted path; None when it has all.

    What others add is theirs and no drift. Lists of named items are compared by name, others item by item.
    """
    if live is None and wanted in ("", {}, []):
        return None  # the API server leaves empty values out
    if isinstance(wanted, dict):
        if not isinstance(live, Mapping):
            return path
        for key, value in wanted.items():
            if found := drift(value, live.get(key), f"{path}.{key}".lstrip(".")):
                return found
        return None
    if isinstance(wanted, list):
        return _list_drift(wanted, live, path)
    return None if wanted == live or _same_quantity(wanted, live) else path


def _list_drift(wanted: list[Any], live: Any, path: str) -> str | None:
    if not isinstance(live, list):
        return path
    merge_key = _merge_key(wanted)
    if merge_key:
        by_key = {item.get(merge_key): item for item in live if isinstance(item, Mapping)}
        pairs = [(item, by_key.get(item[merge_key]), f"{path}[{item[merge_key]}]") for item in wanted]
    elif len(live) != len(wanted):
        return path
    else:
        pairs = [
            (item, other, f"{path}[{index}]") for index, (item, other) in enumerate(zip(wanted, live, strict=True))
        ]
    return next((found for item, other, where in pairs if (found := drift(item, other, where))), None)


def _merge_key(items: list[Any]) -> str | None:
    """The key by which the API server merges a list, of those that occur in our manifests."""
    for key in ("uid", "mountPath", "name"):
        if items and all(isinstance(item, dict) and key in item for item in items):
            return key
    return None


_SUFFIXES = {"m": Decimal("0.001"), "k": Decimal(10**3), "": Decimal(1)}
_SUFFIXES |= {letter: Decimal(1000) ** power for power, letter in enumerate("MGTPE", start=2)}
_SUFFIXES |= {f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", start=1)}


def _same_quantity(wanted: Any, live: Any) -> bool:
    """The API server rewrites quantities ("1000m" becomes "1"); equal amounts are no drift."""
    if not (isinstance(wanted, str) and isinstance(live, str)):
        return False
    first, second = _amount(wanted), _amount(live)
    return first is not None and first == second


def _amount(text: str) -> Decimal | None:
    number = text.rstrip("mkMGTPEKi")
    try:
        return Decimal(number) * _SUFFIXES[text[len(number) :]]
    except (InvalidOperation, KeyError):
        return None
