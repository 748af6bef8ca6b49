"""The cost of decoding, counted: bytes that the kernels move by construction, and bytes that nobody could do without.

What a kernel reads is fixed by how it is written, so it can be known without a device: the tests hold these numbers
against every load and store of the interpreted kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_engine.kernels.triton.splits import SUM_BYTES, Pieces

INDEX_BYTES = 4  # of a block's number, and of a length
POSITION_BYTES = 8


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """What, besides lengths, decides how much a layer's decode moves."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    query_bytes: int  # of one number of queries and outputs
    cached_bytes: int  # of one number in the cache
    window: int | None = None  # tokens that are seen, at most


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one layer's decodes, read and written."""

    needed: int  # keys and values that are seen, queries and outputs, each once
    moved: int  # those, and what tables and pieces add

    @property
    def ratio(self) -> float:
        """How much more is moved than is needed; 1 is the best."""
        return self.moved / self.needed


def decode_traffic(shape: DecodeShape, lengths: Sequence[int], pieces: Pieces, tile: int, recorded: int = 1) -> Traffic:
    """One step of sequences with `lengths` tokens each, the new one included.

    recorded: pieces that a recorded step has programs for, if that is more than one; else the step is not recorded, or
    recorded whole.
    """
    programs, looks = (pieces.count, 1) if recorded == 1 else (recorded, 2)  # each at a length, and at what a piece has
    needed = moved = 0
    for length in lengths:
        begin = 0 if shape.window is None else max(0, length - shape.window)
        cached = 2 * (length - begin) * shape.kv_heads * shape.head_dim * shape.cached_bytes
        queries = shape.heads * shape.head_dim * shape.query_bytes  # and as much for the outputs
        needed += cached + 2 * queries
        count = pieces.of(length - begin)
        entries = _table_entries(begin, length, tile, shape.block_size) + programs * looks
        moved += cached + (count + 1) * queries + shape.kv_heads * entries * INDEX_BYTES
        if programs > 1:
            moved += _left_behind(shape, count, looks)
    return Traffic(needed, moved)


def _table_entries(begin: int, end: int, tile: int, block_size: int) -> int:
    """Entries of the block table that one key head's tiles read: a block at an edge is looked up on both sides."""
    return sum(
        (min(start + tile, end) - 1) // block_size - start // block_size + 1 for start in range(begin, end, tile)
    )


def _left_behind(shape: DecodeShape, count: int, looks: int) -> int:
    """What the merge reads, and what was written for it: a single piece has written its output itself."""
    position = shape.heads * (POSITION_BYTES + (looks - 1) * INDEX_BYTES)
    return position if count == 1 else position + 2 * count * shape.heads * (shape.head_dim + 1) * SUM_BYTES
