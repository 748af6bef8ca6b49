"""Storing keys and values in the cache, alone: what `pointwise` does at the end of turning heads, and in which form."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def as_stored(numbers, pointer):
    """Numbers as the cache behind `pointer` keeps them; see `kernels.stored`. NaN stays NaN."""
    kind: tl.constexpr = pointer.dtype.element_ty
    if kind == tl.float8e4nv:
        numbers = tl.clamp(numbers.to(tl.float32), -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL)
    elif kind == tl.float8e5:
        numbers = tl.clamp(numbers.to(tl.float32), -57344.0, 57344.0, propagate_nan=tl.PropagateNan.ALL)
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
    tl.store(key_cache + place, as_stored(key_numbers, key_cache), mask=inside)
    tl.store(value_cache + place, as_stored(value_numbers, value_cache), mask=inside)


def write_kv(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """Store `[tokens, kv_heads, dim]` at `slots`; the heads of a token lie one after another, tokens anywhere."""
    tokens, heads, dim = key.shape
    assert all(part.stride()[1:] == (dim, 1) for part in (key, value))
    width = heads * dim
    store_token[(tokens,)](
        key, value, key_cache, value_cache, slots, key.stride(0), value.stride(0),
        WIDTH=width, COLUMNS=triton.next_power_of_2(width),
    )  # fmt: skip
