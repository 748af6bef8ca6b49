"""Shapes and batches on which every set of attention kernels is held against the plain definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from octavo_engine.kernels.attention import Backend, StepLayout
from octavo_engine.kernels.choice import choose_attention
from paging import Pages

REFERENCE: Backend = "reference"
# Largest difference from the plain definition, on values of about one: a few units in the stored type's last place.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Case:
    """One step over random keys and values."""

    work: tuple[tuple[int, int], ...]  # (tokens that are there already, tokens to compute), decodes first
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    window: int | None = None
    dtype: torch.dtype = torch.float32
    device: str = "cpu"

    def __str__(self) -> str:
        sizes = f"h{self.heads}/{self.kv_heads}x{self.head_dim}-b{self.block_size}"
        steps = "_".join(f"{start}+{count}" for start, count in self.work)
        return f"{sizes}-w{self.window or 0}-{str(self.dtype).removeprefix('torch.')}-{steps}"

    def inputs(self, backend: Backend) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, StepLayout]:
        """Query, key cache, value cache and layout, as `backend` writes them. Slots that no token owns are NaN."""
        lengths = [start + count for start, count in self.work]
        pages = Pages.scattered(lengths, self.block_size)
        caches = pages.cache(self.kv_heads, self.head_dim, self.dtype, self.device)
        everything = pages.layout([(i, 0, length) for i, length in enumerate(lengths)], self.device)
        source = torch.Generator().manual_seed(0)
        shape = sum(lengths), self.kv_heads, self.head_dim
        key, value = (torch.randn(shape, generator=source).to(cache) for cache in caches)
        choose_attention(backend).write_kv(key, value, *caches, everything.slots)
        layout = pages.layout([(i, start, count) for i, (start, count) in enumerate(self.work)], self.device)
        query = torch.randn(len(layout.slots), self.heads, self.head_dim, generator=source)
        return query.to(caches[0]), *caches, layout

    def difference(self, backend: Backend) -> float:
        """Largest difference between `backend` and the plain definition; NaN shows as infinity."""
        found, wanted = (self._attended(name) for name in (backend, REFERENCE))
        return (found.float() - wanted.float()).abs().nan_to_num(torch.inf).max().item()

    def _attended(self, backend: Backend) -> torch.Tensor:
        query, *caches, layout = self.inputs(backend)
        return choose_attention(backend).attend(query, *caches, layout, scale=self.head_dim**-0.5, window=self.window)


def around(edge: int) -> Sequence[int]:
    """Lengths at and beside an edge."""
    return (edge - 1, edge, edge + 1)


def decode_cases(device: str = "cpu") -> list[Case]:
    """Batches of decodes: head counts, head sizes, block sizes, types, windows, lengths around block and tile edges."""
    lengths = tuple((length, 1) for length in (0, *around(15), 40, *around(63), 130))
    few = ((0, 1), (15, 1), (16, 1), (90, 1))
    kinds = [
        *(Case(few, heads=heads, kv_heads=kv) for heads, kv in ((1, 1), (4, 4), (9, 3), (8, 1), (32, 2))),
        *(Case(few, head_dim=dim, dtype=dtype) for dim in (64, 80, 96, 128, 256) for dtype in TOLERANCE),
        *(Case(lengths, block_size=size, window=window) for size in (16, 32) for window in (None, 1, 17, 64)),
        Case(((700, 1),)),  # alone and long: split over the context
        Case(((700, 1), (3, 1), (350, 1)), window=300, dtype=torch.bfloat16),
    ]
    return [Case(**(vars(case) | {"device": device})) for case in kinds]


def mixed_cases(device: str = "cpu") -> list[Case]:
    """Steps with chunks: first, middle, single-token, beside decodes, within windows."""
    batches = [
        ((0, 1),), ((0, 33),), ((16, 17),), ((5, 2), (0, 40)), ((40, 1), (3, 1), (16, 16)), ((7, 1), (0, 20), (31, 1)),
    ]  # fmt: skip
    kinds = [
        Case(work, window=window, dtype=dtype)
        for work in batches
        for window in (None, 1, 8, 17)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    return [Case(**(vars(case) | {"device": device})) for case in kinds]
