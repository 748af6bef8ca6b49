"""The one memory formula: how many KV blocks fit beside weights and activations.

Used before a model is loaded (`octavo plan`, `octavo preflight`, the first second of a start), again with what the
loaded weights really take, and at admission, where a request must fit into the blocks that it gave. Pure numbers: who
measures a room is elsewhere (`runtime.room`), and who knows a model's sizes, too (`model.tensors.costs`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from octavo_engine.errors import InsufficientMemory

GIB = 1024**3

# What a host gives to KV by default: most of its memory is for weights, and other containers may count on the rest.
HOST_CACHE_SHARE = 4
# Measured: what the process holds beside weights, cache and a step's tensors (the interpreter, torch, the tokenizer).
HOST_RUNTIME_BYTES = 512 * 1024**2


@dataclass(frozen=True, slots=True)
class CacheGeometry:
    """The shape of one token's K and V over all layers."""

    layers: int
    kv_heads: int
    head_dim: int
    bytes_per_value: int
    block_size: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token: K and V, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_value

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return self.token_bytes * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a sequence of `tokens` tokens holds."""
        return -(-tokens // self.block_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one engine asks of a memory."""

    geometry: CacheGeometry
    weights: int  # bytes, as they lie in memory
    activations: int  # bytes: the most that a step holds beside weights and cache
    graphs: int = 0  # bytes that CUDA graphs of decodes hold, at most
    max_model_len: int  # tokens of the longest sequence that must fit
    max_num_seqs: int

    @property
    def beside_cache(self) -> int:
        """Bytes of all but the cache."""
        return self.weights + self.activations + self.graphs

    @property
    def least_blocks(self) -> int:
        """Blocks of one sequence of full length: with less, the engine is of no use."""
        return self.geometry.blocks_for(self.max_model_len)

    @property
    def least_bytes(self) -> int:
        """The same in bytes."""
        return self.least_blocks * self.geometry.block_bytes

    @property
    def most_blocks(self) -> int:
        """Blocks that `max_num_seqs` sequences of full length hold: more would never be used."""
        return self.least_blocks * self.max_num_seqs

    @property
    def most_bytes(self) -> int:
        """The same in bytes."""
        return self.most_blocks * self.geometry.block_bytes


class Room(Protocol):
    """A memory that an engine may take a part of."""

    def cache_bytes(self, needs: Needs) -> int:
        """Bytes for KV blocks, at least `needs.least_bytes`; raises InsufficientMemory naming the value that fits."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The KV blocks that an engine gets."""

    needs: Needs
    blocks: int

    @property
    def cache_bytes(self) -> int:
        """Bytes of all blocks."""
        return self.blocks * self.needs.geometry.block_bytes

    @property
    def tokens(self) -> int:
        """Tokens that all blocks hold together."""
        return self.blocks * self.needs.geometry.block_size

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that is admitted, prompt and answer."""
        return min(self.needs.max_model_len, self.tokens)

    def sequences_of(self, tokens: int) -> int:
        """How many sequences of `tokens` tokens run at once."""
        return min(self.needs.max_num_seqs, self.blocks // self.needs.geometry.blocks_for(tokens))


def plan_cache(needs: Needs, room: Room) -> CachePlan:
    """The blocks that fit into `room`, at most what can be used; raises InsufficientMemory with a remedy."""
    blocks = room.cache_bytes(needs) // needs.geometry.block_bytes
    return CachePlan(needs, min(blocks, needs.most_blocks))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRoom:
    """Memory of a processor: the container's limit, or what others on the machine leave of it.

    `wanted` is `--kv-cache-memory-bytes`. By default the cache gets a quarter of the limit, more if one sequence needs
    it, and less if weights leave less: a start without flags should work wherever it can.
    """

    limit: int
    wanted: int | None = None
    left_by_others: int | None = None  # bytes that are free or ours already; None: unknown, or nobody else is there
    processes: int = 1  # that share the model

    def cache_bytes(self, needs: Needs) -> int:
        """See Room."""
        spare = self._usable - needs.weights - needs.activations - self._runtime
        if spare < needs.least_bytes:
            raise InsufficientMemory(f"{self._sum(needs, needs.least_bytes)}: {self._remedy(needs, spare)}")
        if self.wanted is None:
            return min(spare, max(self.limit // HOST_CACHE_SHARE, needs.least_bytes))
        if self.wanted < needs.least_bytes:
            raise _too_small(needs, self.wanted, f"raise --kv-cache-memory-bytes to {needs.least_bytes}")
        if (used := min(self.wanted, needs.most_bytes)) > spare:
            more = "raise the limit" if self._usable == self.limit else "stop others"
            raise InsufficientMemory(
                f"{self._sum(needs, used)}: lower --kv-cache-memory-bytes to {spare} or less, or {more}"
            )
        return self.wanted

    @property
    def likely_bytes(self) -> int:
        """What the cache most probably gets, as long as the model is not known; it fits beside the process itself."""
        wanted = self.limit // HOST_CACHE_SHARE if self.wanted is None else self.wanted
        return max(0, min(wanted, self._usable - self._runtime))

    @property
    def _runtime(self) -> int:
        return HOST_RUNTIME_BYTES * self.processes

    @property
    def _usable(self) -> int:
        return self.limit if self.left_by_others is None else min(self.limit, self.left_by_others)

    def _sum(self, needs: Needs, cache: int) -> str:
        needed = needs.weights + needs.activations + cache + self._runtime
        room = f"the memory limit is {self.limit / GIB:.2f} GiB"
        if self._usable < self.limit:
            room = f"others on this machine leave {self._usable / GIB:.2f} GiB"
        return (
            f"{needed / GIB:.2f} GiB are needed ({needs.weights / GIB:.2f} for weights, {cache / GIB:.2f} for the KV"
            f" cache, {needs.activations / GIB:.2f} for a step, {self._runtime / GIB:.2f} for the process), but"
            f" {room}"
        )

    def _remedy(self, needs: Needs, spare: int) -> str:
        enough = needs.weights + needs.activations + needs.least_bytes + self._runtime
        verb = "raise it to" if self._usable == self.limit else "stop others until they leave"
        return _shorter(needs, spare, f"{verb} {enough / GIB:.2f} GiB", "choose a smaller model")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRoom:
    """Memory of an accelerator, which others may use, too.

    `utilization` is `--gpu-memory-utilization`: the share of the whole that weights, activations and cache may take.
    What others hold is not counted as ours, but it cannot be had either.
    """

    total: int
    utilization: float
    others: int = 0  # bytes that other processes hold, our own driver's context included
    wanted: int | None = None  # --kv-cache-memory-bytes

    def cache_bytes(self, needs: Needs) -> int:
        """See Room."""
        ours = needs.beside_cache
        if self.wanted is not None:
            return self._wanted(needs, self._left - ours)
        share = int(self.total * self.utilization)
        if min(share, ours + needs.most_bytes) > self._left:
            raise InsufficientMemory(
                f"--gpu-memory-utilization {self.utilization:g} is {share / GIB:.2f} of {self.total / GIB:.2f} GiB, but"
                f" others hold {self.others / GIB:.2f}: {self._lower(needs)}"
            )
        if share - ours < needs.least_bytes:
            raise self._too_little(needs, share - ours)
        return share - ours

    @property
    def _left(self) -> int:
        return self.total - self.others

    @property
    def _fitting(self) -> float:
        """The largest utilization that others leave, in hundredths."""
        return math.floor(100 * self._left / self.total) / 100

    def _wanted(self, needs: Needs, spare: int) -> int:
        assert self.wanted is not None
        if self.wanted < needs.least_bytes:
            raise _too_small(needs, self.wanted, f"raise --kv-cache-memory-bytes to {needs.least_bytes}")
        if min(self.wanted, needs.most_bytes) > spare:
            raise InsufficientMemory(
                f"--kv-cache-memory-bytes {self.wanted} is {self.wanted / GIB:.2f} GiB, but weights, a step and others"
                f" leave {max(0, spare) / GIB:.2f} of {self.total / GIB:.2f}: lower it to {max(0, spare)} or less"
            )
        return self.wanted

    def _lower(self, needs: Needs) -> str:
        """What to do when others hold a part of our share."""
        spare = int(self.total * self._fitting) - needs.beside_cache
        lower = f"lower it to {self._fitting:g}"
        if spare >= needs.least_bytes:
            return f"{lower} or less"
        blocks = max(0, spare) // needs.geometry.block_bytes
        if not blocks:
            return "what is left does not hold the weights; use another device"
        return f"{lower}, and --max-model-len to {blocks * needs.geometry.block_size} or less"

    def _too_little(self, needs: Needs, spare: int) -> InsufficientMemory:
        """Our share is free, but too small for one sequence."""
        enough = math.ceil(100 * (needs.beside_cache + needs.least_bytes) / self.total) / 100
        raising = f"raise --gpu-memory-utilization to {enough:g}" if enough <= min(1.0, self._fitting) else ""
        if spare < 0:
            parts = "weights and a step"
            if needs.graphs:
                parts = "weights, a step and CUDA graphs (--enforce-eager does without)"
            held = f"{parts} need {needs.beside_cache / GIB:.2f} GiB"
            share = f"{self.utilization:g} of this device is {self.total * self.utilization / GIB:.2f}"
            return InsufficientMemory(f"{held}, but {share}: {raising or 'use a device with more memory'}")
        return _too_small(needs, spare, raising)


def _too_small(needs: Needs, budget: int, raising: str) -> InsufficientMemory:
    return InsufficientMemory(
        f"one sequence of {needs.max_model_len} tokens needs {needs.least_bytes / GIB:.2f} GiB of KV cache, but"
        f" {max(0, budget) / GIB:.2f} GiB are left: {_shorter(needs, budget, raising, 'use more memory')}"
    )


def _shorter(needs: Needs, budget: int, raising: str, otherwise: str) -> str:
    """`raising`, or the largest `--max-model-len` that fits into `budget`; `otherwise` when none does."""
    tokens = max(0, budget) // needs.geometry.block_bytes * needs.geometry.block_size
    if tokens:
        shorter = f"lower --max-model-len to {tokens} or less"
        return f"{raising}, or {shorter}" if raising else shorter
    return f"{raising}, or {otherwise}" if raising else otherwise
