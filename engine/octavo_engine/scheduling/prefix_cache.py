"""A radix tree over full KV blocks: which token prefixes have their K/V in memory, and which to forget first.

One node is one block; the edge to it is its tokens, compared in full on a hit (a dictionary key is compared, not only
hashed). Each namespace has a root of its own, so that one tenant's prompts are never found by another. The tree owns
no counts: a node is `idle` while no request holds its block, and since a request that holds a block holds all blocks
before it, an idle node has idle children only. Every idle block can therefore be freed, leaf by leaf.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count


@dataclass(slots=True, eq=False)
class Node:
    """A full block in the tree."""

    tokens: tuple[int, ...]
    block: int
    parent: Node | None
    key: int  # of its whole path: see `keys`
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)
    idle: bool = False
    used: int = 0  # tick of the last release; smaller is older


class PrefixCache:
    """Finds the longest cached prefix, remembers written blocks, and picks the least recently used leaf to evict."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._roots: dict[str, Node] = {}
        self._namespaces: dict[Node, str] = {}  # of the roots
        self._nodes: dict[int, Node] = {}  # by block
        self._by_key: dict[int, Node] = {}
        self._ticks = count(1)
        # Candidates for eviction, oldest first. An entry is stale when its node was used, evicted or given a child
        # since.
        self._heap: list[tuple[int, int, Node]] = []
        self.num_idle = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, block: int) -> bool:
        return block in self._nodes

    def blocks(self) -> Iterator[int]:
        """All blocks in the tree."""
        return iter(self._nodes)

    def find(self, namespace: str, tokens: Sequence[int]) -> list[int]:
        """The blocks of the longest cached prefix of `tokens`, in order. Nothing is held by this."""
        return [node.block for node in self._walk(namespace, tokens)]

    def _walk(self, namespace: str, tokens: Sequence[int]) -> Iterator[Node]:
        node, size = self._roots.get(namespace), self._block_size
        for start in range(0, len(tokens) - size + 1, size):
            if node is None or (node := node.children.get(tuple(tokens[start : start + size]))) is None:
                return
            yield node

    def keys(self, namespace: str, tokens: Sequence[int], num_blocks: int) -> list[int]:
        """A number for each of the first `num_blocks` blocks that stands for all tokens up to its end.

        To order and to group requests, which a collision cannot harm; a hit compares the tokens themselves.
        """
        size, key, found = self._block_size, hash(namespace), []
        for start in range(0, num_blocks * size, size):
            key = hash((key, tuple(tokens[start : start + size])))
            found.append(key)
        return found

    def count(self, keys: Sequence[int]) -> int:
        """How many of a sequence's keys, from the first, are in the tree. A path has no gaps, so it is halved."""
        return bisect_left(range(len(keys)), True, key=lambda index: keys[index] not in self._by_key)

    def insert(self, namespace: str, parent_block: int | None, tokens: tuple[int, ...], block: int) -> Node:
        """Make a written block findable under `parent_block` (None: the first of its sequence).

        Returns the node that the tree has for these tokens: a new one for `block`, or that of an equal block which
        another request wrote before; the caller then uses that one, which keeps every holder's blocks on one path.
        """
        assert len(tokens) == self._block_size
        parent = self._root(namespace) if parent_block is None else self._nodes[parent_block]
        if (known := parent.children.get(tokens)) is not None:
            return known
        node = Node(tokens, block, parent, hash((parent.key, tokens)))
        parent.children[tokens] = node
        self._nodes[block] = self._by_key[node.key] = node
        return node

    def _root(self, namespace: str) -> Node:
        if (root := self._roots.get(namespace)) is None:
            root = self._roots[namespace] = Node((), -1, None, hash(namespace))
            self._namespaces[root] = namespace
        return root

    def set_busy(self, block: int) -> None:
        """A request holds `block` again."""
        node = self._nodes[block]
        if node.idle:
            node.idle = False
            self.num_idle -= 1

    def set_idle(self, block: int) -> None:
        """Nobody holds `block` any more; it stays findable until it is evicted."""
        node = self._nodes[block]
        assert not node.idle
        node.idle, node.used = True, next(self._ticks)
        self.num_idle += 1
        self._offer(node)

    def _offer(self, node: Node) -> None:
        if node.idle and not node.children:
            heapq.heappush(self._heap, (node.used, node.block, node))
            if len(self._heap) > 2 * len(self._nodes) + 64:  # stale entries never outnumber the live ones for long
                self._heap = [entry for entry in self._heap if self._is_current(entry)]
                heapq.heapify(self._heap)

    def _is_current(self, entry: tuple[int, int, Node]) -> bool:
        used, block, node = entry
        return node.idle and not node.children and node.used == used and self._nodes.get(block) is node

    def evict(self) -> int:
        """Forget the least recently used idle leaf and return its block. The caller has checked `num_idle`."""
        while not self._is_current(entry := heapq.heappop(self._heap)):
            pass
        node = entry[2]
        self._remove(node)
        return node.block

    def _remove(self, node: Node) -> None:
        del self._nodes[node.block]
        if self._by_key.get(node.key) is node:
            del self._by_key[node.key]
        self.num_idle -= 1
        node.idle = False
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens]
        if parent.parent is not None:
            self._offer(parent)
        elif not parent.children:
            del self._roots[self._namespaces.pop(parent)]
