"""Owns the numbered KV blocks: which are free and how many requests hold each other one. Knows nothing of tokens."""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """Block numbers `0 .. total - 1`, each free, or held by a count of requests, or parked by the prefix cache (count
    0).

    A block leaves the free list with `take` and comes back with `give_back`; in between `hold` and `drop` count its
    users.
    """

    def __init__(self, total: int) -> None:
        assert total > 0
        self.total = total
        self._users = [0] * total
        # A stack: the block freed last is taken first, since its memory is the likeliest to be in a processor's cache.
        self._free = list(range(total - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks on the free list."""
        return len(self._free)

    def users(self, block: int) -> int:
        """How many requests hold `block`."""
        return self._users[block]

    def take(self) -> int:
        """Remove a block from the free list and hold it once. The caller has checked `num_free`."""
        block = self._free.pop()
        self._users[block] = 1
        return block

    def hold(self, block: int) -> int:
        """Count one more user; returns the count."""
        self._users[block] += 1
        return self._users[block]

    def drop(self, block: int) -> int:
        """Count one user less; returns the count. At 0 the caller gives the block back or parks it."""
        assert self._users[block] > 0, f"block {block} dropped more often than held"
        self._users[block] -= 1
        return self._users[block]

    def give_back(self, blocks: Iterable[int]) -> None:
        """Put blocks that nobody holds on the free list."""
        for block in blocks:
            assert self._users[block] == 0, f"block {block} freed while held"
            self._free.append(block)
