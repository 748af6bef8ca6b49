"""Text in which markers may come."""

from __future__ import annotations

from collections.abc import Callable


class MarkedText:
    """Lets text through to `release`, but no marker, nothing that may become one, and no space before either."""

    def __init__(self, markers: tuple[str, ...], release: Callable[[str], None]) -> None:
        self._markers = markers
        self._firsts = frozenset(marker[0] for marker in markers)
        self._release = release
        self._held = ""  # space, then what may be the beginning of a marker
        self._begun = False  # there is such a beginning
        self.space = ""  # what stood before the last marker

    def push(self, char: str) -> str | None:
        """Take one character; the marker that it completes, if it does."""
        self._held += char
        if self._begun or char in self._firsts:
            return self._look()
        if not char.isspace():  # nearly every character: with the space before it, this is text
            self._release(self._held)
            self._held = ""
        return None

    def finish(self) -> str:
        """What was held back."""
        held, self._held, self._begun = self._held, "", False
        return held

    def _look(self) -> str | None:
        for marker in self._markers:
            if self._held.endswith(marker):
                self.space = self._held.removesuffix(marker)
                self.finish()
                return marker
        beginning = self._possible_beginning()
        self._begun = beginning > 0
        sure = self._held[: len(self._held) - beginning].rstrip()
        if sure:
            self._release(sure)
            self._held = self._held[len(sure) :]
        return None

    def _possible_beginning(self) -> int:
        """Length of the longest end of the held text that a marker begins with."""
        longest = min(len(self._held), max(map(len, self._markers)) - 1)
        ends = (size for size in range(longest, 0, -1) if self._begins_a_marker(self._held[-size:]))
        return next(ends, 0)

    def _begins_a_marker(self, end: str) -> bool:
        return any(marker.startswith(end) for marker in self._markers)
