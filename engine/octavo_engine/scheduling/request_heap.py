"""A heap of requests that may leave from anywhere. Knows keys, not what they mean."""

from __future__ import annotations

import heapq

from octavo_engine.request import Request

Key = tuple[float, ...]
"""Compared from the left; the last number is unique to its request, so that requests are never compared."""


class RequestHeap:
    """Requests by key, the smallest first. Every operation is O(log n), amortised.

    Who leaves, or gets another key, leaves a stale entry behind, which is dropped when it surfaces.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Key, Request]] = []
        self._keys: dict[str, Key] = {}  # by request id: the key that counts

    def __len__(self) -> int:
        return len(self._keys)

    def push(self, key: Key, request: Request) -> None:
        """Add a request, or give one that is there another key."""
        self._keys[request.id] = key
        heapq.heappush(self._entries, (key, request))
        if len(self._entries) > 2 * len(self._keys) + 64:  # stale entries never outnumber the others for long
            self._entries = [entry for entry in self._entries if self._counts(entry)]
            heapq.heapify(self._entries)

    def first(self) -> Request | None:
        """The request with the smallest key."""
        entries = self._entries
        while entries and not self._counts(entries[0]):
            heapq.heappop(entries)
        return entries[0][1] if entries else None

    def discard(self, request: Request) -> None:
        """Take a request out, if it is there."""
        self._keys.pop(request.id, None)

    def _counts(self, entry: tuple[Key, Request]) -> bool:
        key, request = entry
        return self._keys.get(request.id) == key
