"""The one memory formula: how many KV blocks fit beside the weights. Pure numbers; who measures them is elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from octavo_engine.errors import InsufficientMemory

GIB = 1024**3

# What a host gives to KV by default: most of its memory is for weights, and other containers may count on the rest.
HOST_CACHE_SHARE = 4
# Measured: what the process holds beside weights and cache (the interpreter, torch, the tokenizer, a step's tensors).
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
    def block_bytes(self) -> int:
        """Bytes of one block: K and V, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_value * self.block_size


def device_cache_bytes(*, total: int, utilization: float, taken_by_us: int) -> int:
    """Bytes left for the cache on a device of `total` bytes of which we may take the share `utilization`.

    `taken_by_us` are our weights and the peak of our activations. What other processes hold is not counted as ours.
    """
    return int(total * utilization) - taken_by_us


def host_cache_bytes(*, limit: int, wanted: int | None) -> int:
    """Bytes for the cache of a process that may use `limit` bytes of host memory, unless a size is `wanted`."""
    return limit // HOST_CACHE_SHARE if wanted is None else wanted


def check_host(*, limit: int, weights: int, cache: int) -> None:
    """Raise InsufficientMemory unless weights, cache and the process itself fit into `limit` bytes of host memory."""
    needed = weights + cache + HOST_RUNTIME_BYTES
    if needed > limit:
        raise InsufficientMemory(
            f"{needed / GIB:.2f} GiB are needed ({weights / GIB:.2f} for weights, {cache / GIB:.2f} for the KV cache,"
            f" {HOST_RUNTIME_BYTES / GIB:.2f} for the process), but the memory limit is {limit / GIB:.2f} GiB:"
            " raise it, or lower --kv-cache-memory-bytes, or choose a smaller model"
        )


def plan_blocks(geometry: CacheGeometry, *, budget: int, max_model_len: int, max_num_seqs: int, setting: str) -> int:
    """KV blocks that `budget` bytes buy, at most what `max_num_seqs` full sequences could use.

    Raises InsufficientMemory unless one sequence of `max_model_len` fits; the message names `setting` (the flag behind
    the budget) with the value that would do, and the largest `--max-model-len` that fits as it is.
    """
    blocks = max(0, budget) // geometry.block_bytes
    per_sequence = -(-max_model_len // geometry.block_size)
    if blocks < per_sequence:
        raise InsufficientMemory(
            f"one sequence of {max_model_len} tokens needs {per_sequence * geometry.block_bytes / GIB:.2f} GiB of"
            f" KV cache, but {max(0, budget) / GIB:.2f} GiB are left: raise {setting}, or lower --max-model-len to"
            f" {blocks * geometry.block_size} or less"
        )
    return min(blocks, per_sequence * max_num_seqs)
