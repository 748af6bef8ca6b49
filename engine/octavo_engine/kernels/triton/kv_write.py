"""Storing keys and values in the cache, alone: what `pointwise` does at the end of turning heads, and in which form."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from octavo_engine.kernels.triton.targets import FUSED


@triton.jit
def as_stored(numbers, scale, pointer):
    """Numbers as the cache behind `pointer` keeps them, divided by the scale if it has 8 bits; see `kernels.stored`.

    NaN stays NaN. The quotient is the nearest there is: a device's quick one could round to another number of 8 bits.
    """
    kind: tl.constexpr = pointer.dtype.element_ty
    if kind == tl.float8e4nv:
        numbers = tl.div_rn(numbers.to(tl.float32), scale)
        numbers = tl.clamp(numbers, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    elif kind == tl.float8e5:
        numbers = tl.div_rn(numbers.to(tl.float32), scale)
        numbers = tl.clamp(numbers, -57344.0, 57344.0, propagate_nan=tl.PropagateNan.ALL)
    return numbers.to(kind)


@triton.jit
def store_token(  # noqa: PLR0917 - a kernel's arguments are positional
    key, value, key_cache, value_cache, slots, key_stride, value_stride,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """All heads of one token, `WIDTH` numbers that lie one after another."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    inside = column < WIDTH
    place = tl.load(slots + token) * WIDTH + column
    key_numbers = tl.load(key + token * key_stride + column, mask=inside, other=0.0)
    value_numbers = tl.load(value + token * value_stride + column, mask=inside, other=0.0)
    tl.store(key_cache + place, as_stored(key_numbers, 1.0, key_cache), mask=inside)
    tl.store(value_cache + place, as_stored(value_numbers, 1.0, value_cache), mask=inside)


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Store `[tokens, kv_heads, dim]` at `slots`; the heads of a token lie one after another, tokens anywhere."""
    tokens, heads, dim = key.shape
    assert all(part.stride()[1:] == (dim, 1) for part in (key, value))
    width = heads * dim
    store_token[(tokens,)](
        key, value, key_cache, value_cache, slots, key.stride(0), value.stride(0),
        WIDTH=width, COLUMNS=triton.next_power_of_2(width), **FUSED,
    )  # fmt: skip
