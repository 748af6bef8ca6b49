"""Whether the watches still tell what happens: what they told against what the API server lists. Pure, no clock.

A watch that hangs looks like a quiet one. So from time to time everything watched is listed: an object of which the
list shows another version than the watch told last is one whose event was missed, and must be looked at; when by the
next list the watch has still said nothing of it, the watch is dead. Versions are compared for equality alone, so a list
that comes from a cache a moment old does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo_operator.names import Key


@dataclass(frozen=True)
class Identity:
    """One object: its kind's plural name and its UID."""

    plural: str
    uid: str


@dataclass(frozen=True)
class Sight:
    """An object at one version; `key` is the service it belongs to, None for an object that is no service's."""

    version: str
    key: Key | None


@dataclass(frozen=True)
class Verdict:
    """What a comparison says.

    Attributes:
        missed: services with an object whose latest version no watch has told.
        silent: kinds whose watch has said nothing since the comparison before, although there was something to say.
    """

    missed: frozenset[Key] = frozenset()
    silent: frozenset[str] = frozenset()


class Heartbeat:
    """What the watches have told. Single event loop only."""

    def __init__(self) -> None:
        self._told: dict[Identity, Sight] = {}
        self._behind: dict[Identity, tuple[str | None, str | None]] = {}

    def told(self, identity: Identity, sight: Sight, gone: bool) -> None:
        """Takes note of one event."""
        if gone:
            self._told.pop(identity, None)
        else:
            self._told[identity] = sight

    def restarted(self) -> None:
        """Forgets everything: watches that begin anew tell everything again, but not what has gone meanwhile."""
        self._told.clear()
        self._behind.clear()

    def compare(self, listed: Mapping[Identity, Sight]) -> Verdict:
        """Holds the list of everything that exists against what was told."""
        behind = {
            identity: (_version(self._told.get(identity)), _version(listed.get(identity)))
            for identity in listed.keys() | self._told.keys()
            if _version(self._told.get(identity)) != _version(listed.get(identity))
        }
        silent = {
            identity.plural
            for identity, (told, _) in behind.items()
            if identity in self._behind and self._behind[identity][0] == told
        }
        sights = (listed.get(identity) or self._told[identity] for identity in behind)
        self._behind = behind
        return Verdict(frozenset(sight.key for sight in sights if sight.key), frozenset(silent))


def _version(sight: Sight | None) -> str | None:
    return sight.version if sight else None
