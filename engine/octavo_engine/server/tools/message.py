"""The parts of a message as they become known."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class CallPart(NamedTuple):
    """More of one call. `id` and `name` come with its first part; all `arguments` joined are the call's."""

    index: int  # type: ignore[assignment]  # hides a method of tuples that nobody needs here
    id: str | None
    name: str | None
    arguments: str


class Said(NamedTuple):
    """What a piece of text added to a message."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()


class Message:
    """Collects what is found in a text, until somebody takes it.

    `call_id` names the n-th call. Calls after the first `most_calls` are left out.
    """

    def __init__(self, call_id: Callable[[int], str], most_calls: int | None = None) -> None:
        self._call_id = call_id
        self._most_calls = most_calls
        self._begun = 0
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._names: dict[int, str] = {}
        self._arguments: dict[int, list[str]] = {}

    @property
    def num_calls(self) -> int:
        """Calls that were begun and not left out."""
        return self._begun if self._most_calls is None else min(self._begun, self._most_calls)

    def say(self, text: str) -> None:
        """Add to what is said."""
        self._content.append(text)

    def think(self, text: str) -> None:
        """Add to what is thought."""
        self._reasoning.append(text)

    def call(self, name: str) -> None:
        """Begin a call."""
        index, self._begun = self._begun, self._begun + 1
        if index < self.num_calls:
            self._names[index] = name
            self._arguments[index] = []

    def argue(self, text: str) -> None:
        """Add to the arguments of the call that was begun last."""
        index = self._begun - 1
        if index < self.num_calls:
            self._arguments.setdefault(index, []).append(text)

    def take(self) -> Said:
        """What was found since the last time."""
        calls = tuple(self._part(index, "".join(texts)) for index, texts in self._arguments.items())
        said = Said("".join(self._content), "".join(self._reasoning), calls)
        self._content, self._reasoning, self._names, self._arguments = [], [], {}, {}
        return said

    def _part(self, index: int, arguments: str) -> CallPart:
        name = self._names.get(index)
        return CallPart(index, None if name is None else self._call_id(index), name, arguments)
