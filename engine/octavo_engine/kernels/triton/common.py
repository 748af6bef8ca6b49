"""The part that all attention kernels share: a tile of queries meets a stretch of one sequence's keys and values.

Ideas: FlashAttention's running softmax (https://arxiv.org/abs/2205.14135), blocks of keys found through a table
(https://arxiv.org/abs/2309.06180), and all heads that share a key as rows of one product, so that it is read once.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# (Triton gives a kernel's arguments their types when it is launched.)
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.attention import UNSCALED, AttentionShape, CacheScales

LOG2_E = 1.4426950408889634  # the kernels' exponents are of 2, which is what a device computes
LEAST_DIM = 16  # of a product that tensor cores take


def padded_dim(head_dim: int) -> int:
    """Dimensions of a head as a tile has them: a power of two."""
    return max(LEAST_DIM, padded(head_dim))


def padded(number: int) -> int:
    """The next power of two."""
    return int(triton.next_power_of_2(number))


def table_name(kernel: str, query: Tensor, cache: Tensor) -> str:
    """What the table of launches calls a kernel for numbers of these types."""
    return f"{kernel}{8 * query.itemsize}{'_8' if cache.itemsize == 1 else ''}"


def scales_of(shape: AttentionShape, cache: Tensor) -> CacheScales:
    """What keys and values of that cache are multiplied with: those of 16 bits and more are as they were."""
    return shape.scales if cache.itemsize == 1 else UNSCALED


@triton.jit
def attend_stretch(  # noqa: PLR0917 - a kernel's arguments are positional
    q, key_cache, value_cache, table, begin, end, seen_by_all, first_seen, last_seen, kv_head, scale_log2, value_scale,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Attention of `q [ROWS, DIM_PADDED]` to the tokens `begin ... end` of the sequence whose blocks `table` names.

    Row i sees the tokens `first_seen[i] ... last_seen[i]`; all rows see those before `seen_by_all`. What keys of 8 bits
    were divided by is a part of `scale_log2`; `value_scale` is that of the values, and multiplies their sum.
    Returns outputs float32 `[ROWS, DIM_PADDED]`, log2 of the sum of each row's weights, and whether it saw anything;
    outputs are 0 where it did not.
    """
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    output = tl.zeros((ROWS, DIM_PADDED), tl.float32)
    # Most tiles lie before what any row may not see: they need no mask, neither for loading nor for weights.
    whole = begin + tl.maximum(tl.minimum(seen_by_all, end) - begin, 0) // TILE * TILE
    output, total, largest = _attend_tiles(
        q, output, total, largest, key_cache, value_cache, table, begin, whole, first_seen, last_seen, kv_head,
        scale_log2, KV_HEADS, DIM, DIM_PADDED, BLOCK_SIZE, TILE, False,
    )  # fmt: skip
    output, total, largest = _attend_tiles(
        q, output, total, largest, key_cache, value_cache, table, whole, end, first_seen, last_seen, kv_head,
        scale_log2, KV_HEADS, DIM, DIM_PADDED, BLOCK_SIZE, TILE, True,
    )  # fmt: skip
    saw = total > 0.0
    total = tl.where(saw, total, 1.0)
    kind: tl.constexpr = value_cache.dtype.element_ty
    if kind == tl.float8e4nv or kind == tl.float8e5:  # noqa: PLR1714 - Triton knows no sets
        output *= value_scale
    return output / total[:, None], tl.where(saw, largest + tl.log2(total), float("-inf")), saw


@triton.jit
def _attend_tiles(  # noqa: PLR0917
    q, output, total, largest, key_cache, value_cache, table, begin, end, first_seen, last_seen, kv_head, scale_log2,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the tokens `begin ... end` to the running sums, a tile at a time; see `attend_stretch`.

    Offsets into the cache are 64 bit: a pool of more than 2**31 numbers is ordinary.
    """
    keys, dims = tl.arange(0, TILE), tl.arange(0, DIM_PADDED)
    for start in range(begin, end, TILE):
        position = start + keys
        inside = position < end
        if MASKED:
            block = tl.load(table + position // BLOCK_SIZE, mask=inside, other=0)
        else:
            block = tl.load(table + position // BLOCK_SIZE)
        slot = block.to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
        offset = ((slot * KV_HEADS + kv_head) * DIM)[:, None] + dims[None, :]
        if MASKED:
            readable = inside[:, None] & (dims < DIM)[None, :]
            k = tl.load(key_cache + offset, mask=readable, other=0.0)
            v = tl.load(value_cache + offset, mask=readable, other=0.0)
        elif DIM != DIM_PADDED:
            k = tl.load(key_cache + offset, mask=(dims < DIM)[None, :], other=0.0)
            v = tl.load(value_cache + offset, mask=(dims < DIM)[None, :], other=0.0)
        else:
            k = tl.load(key_cache + offset)
            v = tl.load(value_cache + offset)
        scores = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * scale_log2
        if MASKED:
            seen = inside[None, :] & (position[None, :] >= first_seen[:, None])
            seen &= position[None, :] <= last_seen[:, None]
            scores = tl.where(seen, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        anchor = new_largest
        if MASKED:  # a row that has seen nothing yet has no largest score to subtract
            anchor = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        correction = tl.exp2(largest - anchor)
        weights = tl.exp2(scores - anchor[:, None])
        total = total * correction + tl.sum(weights, 1)
        output = output * correction[:, None]
        output = tl.dot(weights.to(q.dtype), v.to(q.dtype), output, input_precision="ieee")
        largest = new_largest
    return output, total, largest


@triton.jit
def number(given, RECORDED: tl.constexpr):
    """A number of the step: as it was given, or where a recorded step finds it on the device."""
    return tl.load(given) if RECORDED else given


@triton.jit
def store_rows(  # noqa: PLR0917
    outputs, sums, saw, output, partial, piece_sums, row_valid, alone, token, head, piece, pieces,
    output_stride_t, output_stride_h,
    HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Store each row's result: where its context is one piece as its output, else for the merge.

    token and head `[rows]`, counted from the tensors' beginning; WHOLE: nothing is cut in this launch.
    """
    dims = tl.arange(0, DIM_PADDED)
    done = row_valid & saw & alone
    place = token.to(tl.int64) * output_stride_t + head * output_stride_h
    tl.store(
        output + place[:, None] + dims[None, :], outputs.to(output.dtype.element_ty),
        mask=done[:, None] & (dims < DIM)[None, :],
    )  # fmt: skip
    if not WHOLE:
        left = row_valid & saw & (alone == 0)
        place = (token.to(tl.int64) * HEADS + head) * pieces + piece
        tl.store(partial + place[:, None] * DIM + dims[None, :], outputs, mask=left[:, None] & (dims < DIM)[None, :])
        tl.store(piece_sums + place, sums, mask=left)
