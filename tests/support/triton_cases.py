"""Steps on which Triton's attention is held against the plain definition, in units of the last place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from attention_cases import Case, around
from octavo_engine.kernels.attention import UNSCALED, Backend, CacheScales, StepLayout
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.recorded import RecordedNumbers
from paging import Pages

# Scores, softmax and sums are float32 in both, but added up in another order. Rounded to 16 bits, what that changes is
# at most one unit; in float32 it shows, as it does between any two orders.
UNITS = {torch.bfloat16: 1, torch.float16: 1, torch.float32: 24}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@dataclass(frozen=True)
class TritonCase(Case):
    """One step over a cache that may have a type of its own."""

    stored: torch.dtype | None = None  # None: the queries' own
    largest: float = 1.0  # about how large keys and values are
    recorded: int = 0  # tokens of the longest sequence that the step is recorded for; 0: it is not
    scales: CacheScales = UNSCALED  # what stored keys and values are multiplied with

    def __str__(self) -> str:
        kind = "" if self.stored is None else str(self.stored).removeprefix("torch.float8_") + "-"
        kind += f"r{self.recorded}-" if self.recorded else ""
        kind += "" if self.scales == UNSCALED else f"s{self.scales.key:g},{self.scales.value:g}-"
        return kind + ("" if self.largest == 1 else f"x{self.largest:g}-") + super().__str__()

    def tensors(self, backend: Backend) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, StepLayout]:
        """Query, keys, values and layout, stored by `backend`. Slots that no token owns are NaN."""
        lengths = [start + count for start, count in self.work]
        pages = Pages.scattered(lengths, self.block_size)
        poison = pages.cache(self.kv_heads, self.head_dim, torch.float32, self.device)
        keys, values = (cache.to(self.stored or self.dtype) for cache in poison)
        owned = pages.layout([(index, 0, length) for index, length in enumerate(lengths)], self.device)
        source = torch.Generator().manual_seed(0)
        shape = (sum(lengths), self.kv_heads, self.head_dim)
        new = [torch.randn(shape, generator=source).mul(self.largest).to(self.dtype).to(self.device) for _ in range(2)]
        choose_attention(backend).write_kv(*new, keys, values, owned.slots)
        layout = pages.layout([(index, start, count) for index, (start, count) in enumerate(self.work)], self.device)
        query = torch.randn(len(layout.slots), self.heads, self.head_dim, generator=source)
        return query.to(self.dtype).to(self.device), keys, values, layout

    def as_launched(self, layout: StepLayout) -> StepLayout:
        """The layout as a recorded step has it, with its numbers set for a replay; else as it is."""
        if not self.recorded:
            return layout
        numbers = RecordedNumbers(layout.slots.device)
        numbers.update(layout.max_context)
        return replace(layout, max_context=self.recorded, numbers=numbers)

    def units(self) -> float:
        """How far Triton's outputs are from the plain ones; NaN, and anything left unwritten, is infinitely far."""
        found, wanted = (self._attended(backend) for backend in BACKENDS)
        return units_apart(found, wanted)

    def _attended(self, backend: Backend) -> torch.Tensor:
        query, keys, values, layout = self.tensors(backend)
        layout = layout if backend == "reference" else self.as_launched(layout)
        scale = self.head_dim**-0.5
        return choose_attention(backend).attend(
            query, keys, values, layout, scale=scale, window=self.window, scales=self.scales
        )


BACKENDS: tuple[Backend, Backend] = ("triton", "reference")


def units_apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference of any two entries `[..., dim]`, in units in the last place of their head's largest.

    A head's entries are sums with the same weights: one that happens to come out near zero is no more exact than its
    neighbours.
    """
    largest = wanted.float().abs().amax(-1, keepdim=True)
    exponent = torch.frexp(largest).exponent - 1
    unit = torch.finfo(wanted.dtype).eps * torch.exp2(exponent.float())
    return ((found.float() - wanted.float()).abs() / unit).nan_to_num(torch.inf).max().item()


FEW = ((0, 1), (15, 1), (16, 1), (90, 1))
EDGES = tuple((length, 1) for length in (0, *around(15), *around(31), 40, *around(63), 130))
BF16, FP16 = torch.bfloat16, torch.float16


def decode_cases() -> list[TritonCase]:
    """Batches of decodes: groups of heads, head sizes, types, lengths around blocks and tiles, windows, long ones."""
    return [
        *(TritonCase(FEW, heads=heads, kv_heads=kv) for heads, kv in ((1, 1), (4, 4), (7, 1), (32, 2), (20, 1))),
        *(TritonCase(FEW, head_dim=dim, dtype=BF16) for dim in (64, 80, 96, 128, 256)),
        *(TritonCase(FEW, head_dim=dim, dtype=FP16, heads=8) for dim in (64, 128)),
        TritonCase(FEW, head_dim=80),
        *(TritonCase(FEW, head_dim=dim, dtype=BF16, stored=kind) for dim in (64, 80) for kind in (E4M3, E5M2)),
        TritonCase(FEW, dtype=FP16, stored=E4M3),
        TritonCase(FEW, dtype=BF16, stored=E4M3, largest=400.0),  # some are too large for 8 bits
        TritonCase(FEW, dtype=BF16, stored=E5M2, largest=50_000.0),
        TritonCase(EDGES),
        TritonCase(EDGES, block_size=32, window=17),
        TritonCase(EDGES, block_size=32, window=1),
        TritonCase(EDGES, window=64, dtype=BF16),
        TritonCase(((1000, 1), (900, 1)), heads=4, kv_heads=4),  # in more pieces than are merged at a time
        TritonCase(((700, 1), (3, 1), (350, 1)), window=300, dtype=BF16),
        TritonCase(((400, 1), (3, 1), (350, 1)), dtype=BF16, heads=4, stored=E4M3),
        *scaled_decodes(),
        *recorded_cases(),
    ]


SCALES = CacheScales(0.37, 2.9)  # neither is a power of two, and one is above 1


def scaled_decodes() -> list[TritonCase]:
    """Stored numbers that are multiplied, in one piece, in several, and replayed; and 16-bit ones, which never are."""
    return [
        *(TritonCase(FEW, dtype=BF16, stored=kind, scales=SCALES) for kind in (E4M3, E5M2)),
        TritonCase(FEW, dtype=FP16, stored=E4M3, scales=CacheScales(2.9, 0.01), window=17),
        TritonCase(((400, 1), (3, 1), (350, 1)), dtype=BF16, heads=4, stored=E4M3, scales=SCALES),
        TritonCase(((400, 1), (0, 1)), recorded=800, dtype=BF16, heads=4, stored=E4M3, scales=SCALES),
        TritonCase(FEW, dtype=BF16, scales=SCALES),
    ]


def recorded_cases() -> list[TritonCase]:
    """Decodes as they are replayed: with programs for longer contexts than there are, and for no longer ones; whole
    sequences, cut ones, padding of one token; a window shorter and longer than what was recorded for."""
    return [
        TritonCase(FEW, recorded=91),
        TritonCase(FEW, recorded=500, dtype=BF16),
        TritonCase(((0, 1), (0, 1)), recorded=300, heads=4),  # nothing but padding
        TritonCase(((300, 1), (40, 1), (0, 1)), recorded=700, dtype=BF16, heads=4),
        TritonCase(((299, 1), (3, 1)), recorded=900, window=200, dtype=BF16, block_size=32),
        TritonCase(((150, 1), (3, 1)), recorded=600, window=500, heads=2),
        TritonCase(((400, 1), (0, 1)), recorded=800, dtype=BF16, heads=4, stored=E4M3),
    ]


def mixed_cases() -> list[TritonCase]:
    """Steps with chunks: first, middle, of one token beside longer ones, around tiles of queries, long contexts."""
    beside = ((7, 1), (0, 1), (130, 1), (0, 20), (31, 2), (64, 65))
    tile = 128 // 3  # tokens of a tile with groups of three heads
    return [
        TritonCase(((0, 33),)),
        TritonCase(((5, 2), (0, 40)), heads=1, kv_heads=1),
        *(TritonCase(beside, window=window) for window in (None, 8)),
        *(TritonCase(beside, window=window, dtype=BF16, block_size=32) for window in (1, 17, 100)),
        TritonCase(tuple((16, count) for count in around(tile)), dtype=BF16),
        TritonCase(((3, 1), (16, 2 * tile)), dtype=FP16, heads=6),
        TritonCase(((40, 19), (0, 5)), dtype=BF16, heads=40, kv_heads=1, head_dim=16),
        *(TritonCase(((6, 1), (0, 17), (30, 40)), dtype=BF16, head_dim=dim) for dim in (80, 128, 256)),
        *(TritonCase(((6, 1), (0, 17), (30, 40)), dtype=BF16, stored=kind) for kind in (E4M3, E5M2)),
        *(TritonCase(((6, 1), (0, 17), (30, 40)), dtype=BF16, stored=kind, scales=SCALES) for kind in (E4M3, None)),
        TritonCase(((1600, 3),), dtype=BF16, stored=E4M3, scales=SCALES),  # cut, and merged
        TritonCase(((1600, 3),), dtype=BF16),  # a few tokens behind a long prefix: cut, and merged
        TritonCase(((90, 1), (500, 600)), dtype=FP16, heads=1, kv_heads=1),  # cut where some queries are
        TritonCase(((2100, 1), (3, 1), (0, 9)), dtype=BF16, kv_heads=1),  # decodes too long to share the launch
        TritonCase(((700, 1), (600, 7)), dtype=BF16, window=200),
    ]


def soak_cases() -> list[TritonCase]:
    """Every kind with every other."""
    works = (FEW, EDGES, ((7, 1), (130, 1), (0, 20), (64, 65)), ((0, 1),), ((1600, 3),))
    return [
        TritonCase(work, heads=heads, kv_heads=kv, head_dim=dim, block_size=size, window=window, dtype=dtype)
        for work in works
        for heads, kv in ((4, 4), (6, 2), (16, 2))
        for dim in (64, 96, 256)
        for size in (16, 32)
        for window in (None, 33)
        for dtype in UNITS
    ]


def on_device(cases: list[TritonCase], device: str) -> list[TritonCase]:
    """The same cases on a device."""
    return [replace(case, device=device) for case in cases]
