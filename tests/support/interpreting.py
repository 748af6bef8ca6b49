"""Triton's interpreter, corrected where its numbers are not a device's, and quick enough for a grid of shapes.

For a child process with TRITON_INTERPRET=1: the interpreter is chosen when kernels are imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder

Array = npt.NDArray[Any]
TORCH_TYPES = {
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}


def correct() -> None:
    """Correct it for this process."""
    interpreter._convert_float = convert
    _widen_products()
    _patch_once()


def convert(numbers: Array, source: tl.dtype, target: tl.dtype, _rounding: object) -> Array:
    """Floats of one type as those of another, as bits: to the nearest, ties to even, as devices round.

    The interpreter's own way rounds every tie up, and what it rounds up past a power of two may lose a bit.
    """
    raw = torch.from_numpy(np.ascontiguousarray(numbers).view(np.uint8))
    found = raw.view(TORCH_TYPES[source]).to(TORCH_TYPES[target]).view(torch.uint8).numpy()
    unsigned = np.dtype(f"uint{target.primitive_bitwidth}")
    return np.ascontiguousarray(found).view(unsigned).reshape(numbers.shape)


def _widen_products() -> None:
    """The interpreter keeps bfloat16 as bits, and its `dot` multiplies those: hand it the same values in float32."""
    plain_dot = InterpreterBuilder.create_dot

    def create_dot(builder: Any, left: Any, right: Any, *rest: Any) -> Any:
        left, right = (
            builder.create_fp_ext(part, tl.float32) if part.dtype.scalar in {tl.bfloat16, tl.float16} else part
            for part in (left, right)
        )
        return plain_dot(builder, left, right, *rest)

    InterpreterBuilder.create_dot = create_dot


def _patch_once() -> None:
    """The interpreter exchanges `triton.language` at every call of a function, which takes longer than the call: do it
    for each module's first one, and leave it so."""
    patch: Callable[[Any], Any] = interpreter._patch_lang
    patched: set[str] = set()

    class Kept:
        def restore(self) -> None:
            """Leave it exchanged."""

    def patch_lang(function: Any) -> Kept:
        if function.__module__ not in patched:
            patched.add(function.__module__)
            patch(function)
        return Kept()

    interpreter._patch_lang = patch_lang


@dataclass
class Moved:
    """Bytes that kernels have loaded and stored: of each access, those of different addresses."""

    bytes: int = 0

    def count(self, addresses: Array, mask: Array, kind: Any) -> None:
        places = np.unique(np.broadcast_to(addresses, mask.shape)[mask])
        self.bytes += len(places) * kind.primitive_bitwidth // 8


@contextmanager
def counting() -> Iterator[Moved]:
    """Count while it is open."""
    moved = Moved()
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def counted_load(builder: Any, places: Any, mask: Any, *rest: Any) -> Any:
        moved.count(places.data, mask.data, places.get_element_ty())
        return load(builder, places, mask, *rest)

    def counted_store(builder: Any, places: Any, value: Any, mask: Any, *rest: Any) -> Any:
        moved.count(places.data, mask.data, places.get_element_ty())
        return store(builder, places, value, mask, *rest)

    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = counted_load, counted_store
    try:
        yield moved
    finally:
        InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = load, store
