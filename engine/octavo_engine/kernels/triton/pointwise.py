"""What surrounds products and attention, one launch each: RMSNorm, the sum before it, a gated MLP's gate, and the
heads' way through norm and rotation into the cache.

Numbers are widened to float32, and rounded once, when they are stored. A program never reads what another one writes.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
# (Triton gives a kernel's arguments their types when it is launched.)
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.attention import UNSCALED, CacheScales
from octavo_engine.kernels.pointwise import HeadNorms, PointwiseKernels, StoreHeads
from octavo_engine.kernels.triton.kv_write import as_stored
from octavo_engine.kernels.triton.targets import Target, launch_on


@triton.jit
def norm_row(  # noqa: PLR0917 - a kernel's arguments are positional
    x, weight, residual, out, x_stride, eps, WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One row's norm; with a residual, of the sum of both, which replaces the residual and is rounded before."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < WIDTH
    numbers = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if residual is not None:
        place = residual + row * WIDTH + column
        total = (numbers + tl.load(place, mask=inside, other=0.0).to(tl.float32)).to(residual.dtype.element_ty)
        tl.store(place, total, mask=inside)
        numbers = total.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(numbers * numbers, 0) / WIDTH + eps)
    normed = numbers * inverse * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gate_row(both, out, both_stride, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """A piece of one row: gate and up lie beside each other in `both`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    place = both + row * both_stride + column
    gate = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(place + WIDTH, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def turn_heads(  # noqa: PLR0917
    heads, cos, sin, slots, query_norm, key_norm, queries, keys, values, eps, key_scale, value_scale,
    QUERY_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Some heads of one token. Halves turn against each other, so they are loaded as two tiles `[HEADS, HALF]`.

    Keys and values of 8 bits are divided by their scales when they are stored.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, HALF)
    narrow = column < DIM // 2
    is_query, is_value = head < QUERY_HEADS, head >= QUERY_HEADS + KV_HEADS
    inside = (head < QUERY_HEADS + 2 * KV_HEADS)[:, None] & narrow[None, :]
    place = heads + (token * (QUERY_HEADS + 2 * KV_HEADS) + head)[:, None] * DIM + column[None, :]
    left = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(place + DIM // 2, mask=inside, other=0.0).to(tl.float32)
    first, second = left, right
    if query_norm is not None:
        inverse = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / DIM + eps)[:, None]
        first *= inverse * _norm_weight(query_norm, key_norm, column, narrow, is_query)
        second *= inverse * _norm_weight(query_norm, key_norm, column + DIM // 2, narrow, is_query)
    angle = token * DIM + column
    turned_left = first * _row(cos + angle, narrow) + second * _row(sin + angle, narrow)
    turned_right = second * _row(cos + angle + DIM // 2, narrow) + first * _row(sin + angle + DIM // 2, narrow)

    slot = tl.load(slots + token)
    _store(queries, token * QUERY_HEADS + head, column, turned_left, turned_right, 1.0, inside & is_query[:, None], DIM)
    is_key = (head >= QUERY_HEADS) & (head < QUERY_HEADS + KV_HEADS)
    key = slot * KV_HEADS + head - QUERY_HEADS
    _store(keys, key, column, turned_left, turned_right, key_scale, inside & is_key[:, None], DIM)
    value = slot * KV_HEADS + head - (QUERY_HEADS + KV_HEADS)
    _store(values, value, column, left, right, value_scale, inside & is_value[:, None], DIM)


@triton.jit
def _row(place, mask):
    """Numbers that all heads share, `[1, HALF]`."""
    return tl.load(place, mask=mask, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _norm_weight(query_norm, key_norm, column, mask, is_query):
    return tl.where(is_query[:, None], _row(query_norm + column, mask), _row(key_norm + column, mask))


@triton.jit
def _store(target, head, column, left, right, scale, mask, DIM: tl.constexpr):  # noqa: PLR0917
    """Both halves `[HEADS, HALF]` of heads, each in the row that `head` says."""
    place = target + head[:, None] * DIM + column[None, :]
    tl.store(place, as_stored(left, scale, target), mask=mask)
    tl.store(place + DIM // 2, as_stored(right, scale, target), mask=mask)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """The kernels as they are launched on one target."""

    target: Target

    @property
    def kernels(self) -> PointwiseKernels:
        """What a decoder takes."""
        return PointwiseKernels("triton", self.rms_norm, self.prepare_store, self.add_rms_norm)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The fast twin of `pointwise.rms_norm`; rows may lie apart by any stride."""
        return self._norm(x, weight, None, eps)

    def add_rms_norm(self, residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The fast twin of `pointwise.add_rms_norm`: the contiguous residual becomes the sum."""
        assert residual.is_contiguous()
        return self._norm(x, weight, residual, eps)

    def _norm(self, x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> Tensor:
        rows, width = x.shape
        assert x.stride(1) == 1
        columns = triton.next_power_of_2(width)
        launch = launch_on(self.target, "norm_row", columns)
        out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
        norm_row[(rows,)](x, weight, residual, out, x.stride(0), eps, WIDTH=width, COLUMNS=columns, **launch.arguments)
        return out

    def silu_multiply(self, both: Tensor) -> Tensor:
        """`[rows, 2 * width]`, gate before up -> `silu(gate) * up`, `[rows, width]`."""
        rows, width = len(both), both.shape[1] // 2
        assert both.stride(1) == 1
        launch = launch_on(self.target, "gate_row", 1)
        out = torch.empty((rows, width), dtype=both.dtype, device=both.device)
        pieces = triton.cdiv(width, launch.blocks["COLUMNS"])
        gate_row[(rows, pieces)](both, out, both.stride(0), WIDTH=width, **launch.arguments)
        return out

    def prepare_store(self, cos: Tensor, sin: Tensor, slots: Tensor) -> StoreHeads:
        """The fast twin of `pointwise.prepare_store`. The heads are left as they are: a half that a warp has turned
        must not be read by another one, which has yet to turn the other half."""
        half = triton.next_power_of_2(cos.shape[-1] // 2)
        launch = launch_on(self.target, "turn_heads", half)

        def store_heads(
            heads: Tensor, norms: HeadNorms | None, cache: tuple[Tensor, Tensor], scales: CacheScales = UNSCALED
        ) -> Tensor:
            (tokens, count, dim), kv_heads = heads.shape, cache[0].shape[2]
            assert all(tensor.is_contiguous() for tensor in (heads, *cache))
            query_heads = count - 2 * kv_heads
            query_norm, key_norm, eps = (None, None, 0.0) if norms is None else (norms.query, norms.key, norms.eps)
            queries = torch.empty((tokens, query_heads, dim), dtype=heads.dtype, device=heads.device)
            turn_heads[(tokens, triton.cdiv(count, launch.blocks["HEADS"]))](
                heads, cos, sin, slots, query_norm, key_norm, queries, *cache, eps, *scales,
                QUERY_HEADS=query_heads, KV_HEADS=kv_heads, DIM=dim, HALF=half, **launch.arguments,
            )  # fmt: skip
            return queries

        return store_heads
