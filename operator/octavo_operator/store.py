"""What is known of the cluster without asking: objects as watches, lists and answers have told them. Pure.

Four tell it: the watches, the full list of every few minutes, looks that ask the API server, and the answers to the
operator's own writes, which are known here before any watch tells of them. Three rules keep a view that is behind from
doing harm. An object never goes back to an older version, and none comes back that has ended. What a later list shows
otherwise is doubted: the next look at that service asks. And whoever writes because of what is known here says so
(`cluster.Cluster.execute`), and the API server refuses a write that rests on an older version.

Objects are shared, not copied: nobody changes one.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from octavo_operator import names
from octavo_operator.field_owners import has_other_managers
from octavo_operator.heartbeat import Identity, Sight
from octavo_operator.names import Key
from octavo_operator.watched import WATCHED, parent_key

Object = dict[str, Any]
Slot = tuple[str, str]
"""Plural name of a kind, and an object's name."""

_STATUSLESS = frozenset({"services", "poddisruptionbudgets", "networkpolicies", "serviceaccounts", "configmaps"})
"""Kinds whose status no look reads: that it changes is no news."""
_MANAGERS_UNREAD = frozenset({names.PLURAL, "jobs", "pods"})
"""Kinds of which nobody asks who set which field."""
_WATCHED = frozenset(watched.plural for watched in WATCHED)
_REMEMBERED_ENDS = 4096
_FINAL = 1 << 63
"""Later than any version: an object that has ended has no other."""


@dataclass(frozen=True, slots=True)
class _Entry:
    body: Object
    version: int
    at: int
    since: float


class Store:
    """Objects by the service that they belong to; those of nobody are not kept. Single event loop only.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._families: dict[Key, dict[Slot, _Entry]] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()
        self._doubted: set[Key] = set()
        self._now = 0
        self._complete = False

    def service(self, key: Key) -> Object | None:
        """The service, if it and all that belongs to it is known well enough to look at without asking."""
        known = self._complete and key not in self._doubted
        return self.one(names.PLURAL, key, key.name) if known else None

    def age(self, plural: str, key: Key, name: str) -> float:
        """Seconds since an object was last told or read as it is known."""
        entry = self._families.get(key, {}).get((plural, name))
        return self._clock() - entry.since if entry else math.inf

    def new(self, key: Key) -> bool:
        """Whether nothing is known that belongs to the service."""
        return self._families.get(key, {}).keys() <= {(names.PLURAL, key.name)}

    def one(self, plural: str, key: Key, name: str) -> Object | None:
        """One object of a service; None says only that it is not known."""
        entry = self._families.get(key, {}).get((plural, name))
        return entry.body if entry else None

    def all_of(self, plural: str, key: Key) -> list[Object]:
        """Every object of a kind that belongs to a service."""
        return [entry.body for slot, entry in self._families.get(key, {}).items() if slot[0] == plural]

    def mark(self) -> int:
        """This moment: a list that is asked for now says nothing about what is put in later."""
        return self._now

    def told(self, plural: str, body: Object, gone: bool) -> bool:
        """Takes note of an event; whether a look at the service would now find something else."""
        key = family_of(plural, body)
        if key is None:
            return False
        head = body["metadata"]
        before = self._families.get(key, {}).get((plural, head["name"]))
        if not gone:
            return self._put(key, plural, body) and (before is None or _differ(plural, before.body, body))
        self._end(head["uid"], _version(body))
        if before is None or _head(before)["uid"] != head["uid"]:
            return False
        self._drop(key, (plural, head["name"]))
        return True

    def put(self, plural: str, body: Object) -> bool:
        """Takes note of an object as an answer has shown it; whether that was not known yet."""
        key = family_of(plural, body)
        return key is not None and self._put(key, plural, body)

    def end(self, uid: str) -> None:
        """Takes note that the API server has removed an object."""
        self._end(uid, _FINAL)
        for key, family in list(self._families.items()):
            for slot in [slot for slot, entry in family.items() if _head(entry)["uid"] == uid]:
                self._drop(key, slot)

    def see(self, key: Key, found: Mapping[str, Iterable[Object]], since: int) -> None:
        """Takes note of all that a service has of some kinds, as asked for at the moment `since`: the rest is gone."""
        self._read(found, since, [key])

    def learn(self, key: Key, found: Mapping[str, Iterable[Object]], since: int) -> None:
        """Takes note of all that a service has of every kind; there is no doubt about it any more."""
        self.see(key, found, since)
        self._doubted.discard(key)

    def replace(self, found: Mapping[str, Iterable[Object]], since: int) -> None:
        """Takes note of lists of everything that is watched, asked for at the moment `since`."""
        self._read(found, since, list(self._families))
        self._doubted.clear()
        self._complete = True

    def restarted(self) -> None:
        """The watches begin anew: until everything is listed again, whatever has gone meanwhile is not known."""
        self._complete = False

    def doubt(self, key: Key) -> None:
        """Has the next look at a service ask for everything."""
        self._doubted.add(key)

    def behind(self, listed: Mapping[Identity, Sight], since: int) -> set[Key]:
        """Services of which a later list, asked for at the moment `since`, shows something else than is known here."""
        known = {
            Identity(slot[0], _head(entry)["uid"]): (key, entry)
            for key, family in self._families.items()
            for slot, entry in family.items()
        }
        found = {
            sight.key
            for identity, sight in listed.items()
            if sight.key and (identity not in known or known[identity][1].version < _number(sight.version))
        }
        ended = (known[identity] for identity in known.keys() - listed.keys() if identity.plural in _WATCHED)
        return found | {key for key, entry in ended if entry.at <= since}

    def _read(self, found: Mapping[str, Iterable[Object]], since: int, families: Iterable[Key]) -> None:
        seen: dict[Key, set[Slot]] = {}
        for plural, bodies in found.items():
            for body in bodies:
                if key := family_of(plural, body):
                    self._put(key, plural, body)
                    seen.setdefault(key, set()).add((plural, body["metadata"]["name"]))
        for key in families:
            self._keep(key, found.keys(), seen.get(key, set()), since)

    def _keep(self, key: Key, plurals: Collection[str], slots: Collection[Slot], since: int) -> None:
        """Of these kinds, nothing but what was listed, and what has come since it was asked for."""
        for slot, entry in list(self._families.get(key, {}).items()):
            if slot[0] in plurals and slot not in slots and entry.at <= since:
                self._end(_head(entry)["uid"], entry.version)
                self._drop(key, slot)

    def _put(self, key: Key, plural: str, body: Object) -> bool:
        """Whether it was newer than what is known."""
        head, version = body["metadata"], _version(body)
        slot = (plural, head["name"])
        before = self._families.get(key, {}).get(slot)
        if self._ended.get(head["uid"], -1) >= version:
            return False
        if before and version < before.version:
            return False
        known = before is not None and head["resourceVersion"] == _head(before)["resourceVersion"]
        self._now += 1
        kept = before.body if known and before else _lean(plural, body)
        self._families.setdefault(key, {})[slot] = _Entry(kept, version, self._now, self._clock())
        return not known

    def _drop(self, key: Key, slot: Slot) -> None:
        family = self._families[key]
        del family[slot]
        if not family:
            del self._families[key]
            self._doubted.discard(key)

    def _end(self, uid: str, version: int) -> None:
        self._ended[uid] = max(version, self._ended.pop(uid, version))
        while len(self._ended) > _REMEMBERED_ENDS:
            self._ended.popitem(last=False)


def family_of(plural: str, body: Object) -> Key | None:
    """The service that an object belongs to, the service itself included; None also for what is no stored object."""
    head = body.get("metadata") or {}
    if not ("uid" in head and "resourceVersion" in head):
        return None
    return Key(head["namespace"], head["name"]) if plural == names.PLURAL else parent_key(body)


def _version(body: Object) -> int:
    return _number(body["metadata"]["resourceVersion"])


def _number(version: str) -> int:
    """Versions of one kind are decimal numbers that grow; where an API server has others, all count as equally old."""
    return int(version) if version.isdecimal() else 0


def _head(entry: _Entry) -> Object:
    head: Object = entry.body["metadata"]
    return head


def _lean(plural: str, body: Object) -> Object:
    """Without the book-keeping of who set which field, half of an object's size, where nobody will ask for it."""
    if plural not in _MANAGERS_UNREAD and has_other_managers(body):
        return body
    return body | {"metadata": {key: value for key, value in body["metadata"].items() if key != "managedFields"}}


def _differ(plural: str, before: Object, after: Object) -> bool:
    return plural not in _STATUSLESS or _without_status(before) != _without_status(after)


def _without_status(body: Object) -> Object:
    own = {"resourceVersion", "managedFields", "generation"}
    head = {key: value for key, value in body["metadata"].items() if key not in own}
    return {key: value for key, value in body.items() if key != "status"} | {"metadata": head}
