"""Writes Events about services: each thing once an hour, a bounded number for each service, and never a failure.

An Event is a courtesy to whoever runs `kubectl describe`; status is the record. So one that cannot be written is
logged and forgotten, and no reconcile fails of it.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from octavo_operator import names
from octavo_operator.errors import ApiError
from octavo_operator.notes import Note
from octavo_operator.words import plain

log = logging.getLogger(__name__)

REPEAT_SECONDS = 3600.0
EVENTS_PER_SERVICE = 30
"""In one hour; what comes after that stays in status and in the log."""
_SERVICES = 2000
_MAX_MESSAGE = 1000  # the API server takes 1,024 bytes


class EventWriter(Protocol):
    """What `cluster.Cluster` offers."""

    async def create_event(self, event: dict[str, Any]) -> None:
        """Creates a core/v1 Event."""
        ...


class Recorder:
    """Tells notes about services.

    Args:
        clock: monotonic seconds.
        now: RFC 3339 wall time, for the Events themselves.
    """

    def __init__(self, writer: EventWriter, clock: Callable[[], float], now: Callable[[], str], holder: str) -> None:
        self._writer = writer
        self._clock = clock
        self._now = now
        self._holder = holder
        self._told: OrderedDict[str, dict[str, float]] = OrderedDict()

    async def tell(self, resource: dict[str, Any], notes: Iterable[Note]) -> None:
        """Writes those notes that were not told within the hour. Raises nothing that the API server caused."""
        for note in notes:
            if self._is_news(resource["metadata"]["uid"], note):
                try:
                    await self._writer.create_event(event(resource, note, self._now(), self._holder))
                except ApiError as error:
                    log.warning("an Event (%s) could not be written: %s", note.reason, error)
                    return  # the others would meet the same

    def _is_news(self, uid: str, note: Note) -> bool:
        """Remembers a note; bounded by services and by notes of each."""
        moment = self._clock()
        told = self._told.setdefault(uid, {})
        self._told.move_to_end(uid)
        while len(self._told) > _SERVICES:
            self._told.popitem(last=False)
        for key in [key for key, then in told.items() if moment - then >= REPEAT_SECONDS]:
            del told[key]
        key = _digest(note)
        known = key in told
        if known and note.standing:
            told[key] = moment
        if known or len(told) >= EVENTS_PER_SERVICE:
            return False
        told[key] = moment
        return True


def event(resource: dict[str, Any], note: Note, now: str, holder: str) -> dict[str, Any]:
    """The Event's object, in the resource's namespace."""
    head = resource["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{head['name'][:200]}.", "namespace": head["namespace"]},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": head["name"],
            "namespace": head["namespace"],
            "uid": head["uid"],
        },
        "type": "Warning" if note.warning else "Normal",
        "reason": note.reason,
        "message": plain(note.message, _MAX_MESSAGE),
        "source": {"component": names.FIELD_MANAGER},
        "reportingComponent": f"{names.GROUP}/{names.FIELD_MANAGER}",
        "reportingInstance": holder[:128],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def _digest(note: Note) -> str:
    return hashlib.sha256(f"{note.reason}\n{note.message}".encode()).hexdigest()[:16]
