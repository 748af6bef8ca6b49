"""The KV blocks of requests: shared prefixes on admission, new blocks on demand, everything back at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from octavo_engine.request import Request
from octavo_engine.scheduling.block_pool import BlockPool
from octavo_engine.scheduling.prefix_cache import PrefixCache


@dataclass(frozen=True, slots=True)
class Prefix:
    """The cached beginning of a request: its blocks, and how many of those count as available until it is admitted."""

    blocks: tuple[int, ...] = ()
    num_idle: int = 0


class KVCache:
    """Block tables over a pool and a prefix cache. After every call: free + cached + used == total."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True) -> None:
        self.block_size = block_size
        self._total = num_blocks
        self._caches_prefixes = enable_prefix_caching
        self.evicted_blocks = 0
        self.reset()

    def reset(self) -> None:
        """Every block is free, whoever held it, and no prefix is known."""
        self._pool = BlockPool(self._total)
        self._prefixes = PrefixCache(self.block_size) if self._caches_prefixes else None
        self.held_slots = 0  # token slots in the block tables of all requests; a shared block counts for each
        self.stored_tokens = 0  # of these, how many hold a token

    @property
    def num_blocks(self) -> int:
        """All blocks."""
        return self._total

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds but a later request may find; evicted on demand."""
        return self._prefixes.num_idle if self._prefixes else 0

    @property
    def num_available(self) -> int:
        """Blocks that a request can get."""
        return self.num_free + self.num_cached

    @property
    def num_used(self) -> int:
        """Blocks that requests hold."""
        return self.num_blocks - self.num_available

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def find_prefix(self, request: Request) -> Prefix:
        """The longest cached prefix of the tokens that need not be computed: see `Request.num_reusable`."""
        limit = request.num_reusable // self.block_size
        if self._prefixes is None or not limit:
            return Prefix()
        blocks = self._prefixes.find(request.namespace, request.tokens)[:limit]
        return Prefix(tuple(blocks), sum(self._pool.users(block) == 0 for block in blocks))

    def keys(self, request: Request) -> list[int]:
        """A key for each full block that could be a hit: see `PrefixCache.keys`."""
        return self._tree.keys(request.namespace, request.tokens, request.num_reusable // self.block_size)

    def count(self, keys: Sequence[int]) -> int:
        """How many of `keys`, from the first, are findable: a guess at the prefix that a request would find."""
        return self._tree.count(keys)

    def attach(self, request: Request, prefix: Prefix) -> None:
        """Give a request without blocks its cached prefix; those tokens count as computed."""
        assert not request.blocks
        for block in prefix.blocks:
            if self._pool.hold(block) == 1:
                self._tree.set_busy(block)
        request.blocks.extend(prefix.blocks)
        request.num_computed = len(prefix.blocks) * self.block_size
        self.held_slots += request.num_computed
        self.stored_tokens += request.num_computed

    def missing_blocks(self, request: Request, num_tokens: int) -> int:
        """Blocks to be taken before the first `num_tokens` tokens of a request have a place."""
        return max(0, self.blocks_for(num_tokens) - len(request.blocks))

    def grow(self, request: Request, num_tokens: int) -> bool:
        """Extend the block table to `num_tokens` tokens, evicting old prefixes as needed; False, and no change, if it
        cannot."""
        missing = self.missing_blocks(request, num_tokens)
        if missing > self.num_available:
            return False
        for _ in range(missing):
            if not self._pool.num_free:
                self._pool.give_back([self._tree.evict()])
                self.evicted_blocks += 1
            request.blocks.append(self._pool.take())
        self.held_slots += missing * self.block_size
        return True

    def written(self, request: Request, start: int, stop: int) -> Sequence[int]:
        """Tokens `[start, stop)` of a request have their K/V: they count as computed, and full blocks are findable.

        Returns the keys of these blocks.
        """
        request.num_computed = stop
        self.stored_tokens += stop - start
        first, last = start // self.block_size, stop // self.block_size
        if self._prefixes is None or first == last:
            return ()
        return [self._publish(request, index) for index in range(first, last)]

    def _publish(self, request: Request, index: int) -> int:
        """Make one full block findable; returns its key."""
        size, block = self.block_size, request.blocks[index]
        parent = request.blocks[index - 1] if index else None
        tokens = tuple(request.tokens[index * size : (index + 1) * size])
        node = self._tree.insert(request.namespace, parent, tokens, block)
        if node.block != block:
            self._replace(request, index, node.block)
        return node.key

    def _replace(self, request: Request, index: int, known: int) -> None:
        """Use the equal block that another request wrote first, and free our copy."""
        if self._pool.hold(known) == 1:
            self._tree.set_busy(known)
        self._release_blocks([request.blocks[index]])
        request.blocks[index] = known
        request.blocks_copied = min(request.blocks_copied, index)

    def flush(self) -> int:
        """Forget every prefix that no request holds; returns how many blocks that frees. Held ones stay findable."""
        if self._prefixes is None:
            return 0
        blocks = [self._prefixes.evict() for _ in range(self._prefixes.num_idle)]
        self._pool.give_back(blocks)
        return len(blocks)

    def release(self, request: Request) -> None:
        """Take a request's blocks away; full ones stay findable. Its tokens count as not computed."""
        # The last block first: of two idle blocks of one sequence the later is then the older, and leaves are evicted
        # first.
        self._release_blocks(reversed(request.blocks))
        self.held_slots -= len(request.blocks) * self.block_size
        self.stored_tokens -= request.num_computed
        request.blocks.clear()
        request.blocks_copied = 0
        request.num_computed = 0

    def _release_blocks(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if self._pool.drop(block):
                continue
            if self._prefixes is not None and block in self._prefixes:
                self._prefixes.set_idle(block)
            else:
                self._pool.give_back([block])

    def users(self, block: int) -> int:
        """How many requests hold `block`."""
        return self._pool.users(block)

    @property
    def _tree(self) -> PrefixCache:
        assert self._prefixes is not None
        return self._prefixes


class Returns:
    """How many blocks would become available if some requests gave theirs back; nothing is changed by asking.

    A block counts once all of its holders are among them. Those in `kept` do not count: somebody has a use for them.
    """

    def __init__(self, cache: KVCache, kept: Iterable[int] = ()) -> None:
        self._cache = cache
        self._kept = frozenset(kept)
        self._dropped: Counter[int] = Counter()
        self.num_blocks = 0

    def add(self, request: Request) -> None:
        """Suppose that this request, too, gave its blocks back."""
        self._dropped.update(request.blocks)
        for block in request.blocks:
            self.num_blocks += block not in self._kept and self._dropped[block] == self._cache.users(block)
