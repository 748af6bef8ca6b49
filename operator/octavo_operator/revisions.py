"""Revisions of a spec, and what is kept of them in an owned ConfigMap. Pure: values and their text.

A revision is named by what the user wrote about the pods. Its rendered pod template is kept, so that the same spec
means the same pods whatever the operator's version: an upgrade restarts nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from octavo_operator.causes import Cause
from octavo_operator.checkpoint import Checkpoint, read_checkpoint
from octavo_operator.spec import Spec

Template = dict[str, Any]

SHAPING = frozenset(
    {"model", "engine", "resources", "startup_seconds", "drain_seconds", "auth", "cache", "restarted_at", "template"}
)
"""The fields that shape a pod. Others change no pod, and so make no revision."""

KEPT = 5
MAX_BYTES = 512 * 1024  # of all kept templates: a ConfigMap holds 1 MiB
_NAME_LENGTH = 10
_ACTIVE, _ORDER, _REFUSED = "active", "order", "refused"


def revision_of(spec: Spec) -> str:
    """The name of the spec's revision.

    What equals a default does not count: writing it down changes nothing, and a default of a later version does not
    make a new revision of an old spec.
    """
    written = spec.model_dump(mode="json", by_alias=True, include=set(SHAPING), exclude_defaults=True)
    return _digest({key: made for key, made in _without_empty(written).items() if made != ""})[:_NAME_LENGTH]


@dataclass(frozen=True)
class Revision:
    """What is kept of one revision.

    Attributes:
        checked: it has passed a preflight; checkpoint: what that found.
        store: source and endpoint of a model that is fetched: its replicas need the way there.
    """

    template: Template
    checked: bool = False
    checkpoint: Checkpoint | None = None
    store: tuple[str, str | None] | None = None


@dataclass(frozen=True)
class History:
    """The revisions of a service, oldest first.

    Attributes:
        active: the one whose template the Deployment shall have.
        refused: the one that was found wanting, and why.
    """

    active: str | None = None
    revisions: Mapping[str, Revision] = field(default_factory=dict)
    refused: tuple[str, Cause] | None = None

    def keeping(self, name: str, revision: Revision) -> History:
        """With this revision as the newest."""
        others = {other: kept for other, kept in self.revisions.items() if other != name}
        return replace(self, revisions=others | {name: revision})

    def why_refused(self, name: str) -> Cause | None:
        """Why a revision was refused; None if it was not."""
        return self.refused[1] if self.refused and self.refused[0] == name else None

    def pruned(self, needed: Iterable[str]) -> History:
        """Without the oldest revisions, beyond what may be kept; those that are needed stay."""
        protected = set(needed) | {self.active}
        left = dict(self.revisions)
        sizes = {name: len(_entry(kept)) for name, kept in left.items()}
        for name in [name for name in left if name not in protected]:
            if len(left) > KEPT or sum(sizes[other] for other in left) > MAX_BYTES:
                del left[name]
        return replace(self, revisions=left)

    def data(self) -> dict[str, str]:
        """As the data of a ConfigMap."""
        made = {name: _entry(kept) for name, kept in self.revisions.items()}
        made[_ORDER] = " ".join(self.revisions)
        made[_ACTIVE] = self.active or ""
        if self.refused:
            name, cause = self.refused
            made[_REFUSED] = json.dumps({"revision": name, "reason": cause.reason, "message": cause.message})
        return made


def read_history(data: Mapping[str, str]) -> History:
    """Reads a ConfigMap's data. What someone has damaged is as if it were not there."""
    entries = {name: kept for name in data.get(_ORDER, "").split() if (kept := _read_entry(data.get(name, "")))}
    active = data.get(_ACTIVE, "")
    return History(active if active in entries else None, entries, _read_refusal(data.get(_REFUSED, "")))


def _entry(kept: Revision) -> str:
    document: dict[str, Any] = {"template": kept.template, "checked": kept.checked}
    if kept.checkpoint:
        document["checkpoint"] = kept.checkpoint.document()
    if kept.store:
        document["store"] = list(kept.store)
    return json.dumps(document | {"digest": _digest(document)}, sort_keys=True, separators=(",", ":"))


def _read_entry(text: str) -> Revision | None:
    document = _object(text)
    digest = document.pop("digest", None)
    if digest != _digest(document) or not isinstance(document.get("template"), dict):
        return None
    store = document.get("store")
    return Revision(
        document["template"],
        document.get("checked") is True,
        read_checkpoint(document.get("checkpoint")),
        (store[0], store[1]) if store else None,
    )


def _read_refusal(text: str) -> tuple[str, Cause] | None:
    document = _object(text)
    words = [document.get(key) for key in ("revision", "reason", "message")]
    if not all(isinstance(word, str) and word for word in words):
        return None
    return str(words[0]), Cause(str(words[1]), str(words[2]), final=True)


def _object(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _digest(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _without_empty(value: Any) -> Any:
    """Without empty objects and lists: they say no more than their absence. A label's empty value does."""
    if not isinstance(value, dict):
        return value
    return {key: made for key, item in value.items() if (made := _without_empty(item)) not in ({}, [], None)}
