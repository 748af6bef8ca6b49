"""Where a form begins in an answer that is free otherwise: what is looked for in the text, byte by byte.

Pure: an opening is a value, and how far the text has come towards it is bytes that whoever watches keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Step(NamedTuple):
    """What a piece of text has led to: a state, or, where the form has begun, what of the piece is the form's."""

    state: bytes
    rest: bytes | None = None


class Opening(Protocol):
    """What a form begins with. The state before any text is b""."""

    @property
    def lasts(self) -> tuple[bytes, ...]:
        """A piece of text without any of these completes no opening, whatever came before it."""

    @property
    def states(self) -> Sequence[bytes]:
        """All there are."""

    def push(self, state: bytes, text: bytes) -> Step:
        """The step from a state by a piece of text."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark anywhere in the text; the form begins after it. The state is the part of the mark that is there."""

    mark: bytes

    @property
    def lasts(self) -> tuple[bytes, ...]:
        """The mark's last byte."""
        return (self.mark[-1:],)

    @property
    def states(self) -> Sequence[bytes]:
        """The mark's beginnings."""
        return _beginnings(self.mark)

    def push(self, state: bytes, text: bytes) -> Step:
        """See Opening."""
        joined = state + text
        if (at := joined.find(self.mark)) >= 0:
            return Step(b"", joined[at + len(self.mark) :])
        longest = min(len(joined), len(self.mark) - 1)
        return Step(
            next((joined[-size:] for size in range(longest, 0, -1) if self.mark.startswith(joined[-size:])), b"")
        )


TEXT = b"\0"  # the state in which no form can begin any more: no state of a beginning begins like it


@dataclass(frozen=True, slots=True)
class Start:
    """What stands first, after nothing but `space`: the byte `first`, with which the form begins, or a mark before it.
    Where anything else stands, there is no form."""

    first: bytes
    mark: bytes
    space: bytes

    @property
    def lasts(self) -> tuple[bytes, ...]:
        """The byte, or the mark's last one."""
        return (self.first, self.mark[-1:])

    @property
    def states(self) -> Sequence[bytes]:
        """The mark's beginnings, and that there is text."""
        return [*_beginnings(self.mark), TEXT]

    def push(self, state: bytes, text: bytes) -> Step:
        """See Opening."""
        if state == TEXT:
            return Step(TEXT)
        begun = (state + text).lstrip(self.space)
        if begun.startswith(self.first):
            return Step(b"", begun)
        if begun.startswith(self.mark):
            return Step(b"", begun[len(self.mark) :])
        return Step(begun if self.mark.startswith(begun) else TEXT)


def _beginnings(mark: bytes) -> list[bytes]:
    return [mark[:size] for size in range(len(mark))]


@dataclass(frozen=True, slots=True)
class Openings:
    """How a form comes about: by the `first` opening, and, where it has ended, by the next.

    next: None: an answer ends with its first form. special: the text has the names of control tokens in it.
    """

    first: Opening
    next: Opening | None
    special: bool
