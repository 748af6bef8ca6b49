"""The launches that are tried of each kernel: a bounded list, the usual one first. Plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from octavo_engine.kernels.triton.targets import Launch


@dataclass(frozen=True, slots=True)
class Space:
    """What is tried of one kernel: each combination."""

    warps: tuple[int, ...]
    stages: tuple[int, ...] = (1,)
    blocks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def launches(self) -> Iterator[Launch]:
        """All of them."""
        for warps, stages, *sizes in product(self.warps, self.stages, *self.blocks.values()):
            yield Launch(warps, stages, dict(zip(self.blocks, sizes, strict=True)))


SPACES = {
    "decode16": Space((4, 8), (2, 3, 4), {"ROWS": (16,), "TILE": (32, 64, 128)}),
    "mixed16": Space((4, 8), (2, 3), {"ROWS": (64, 128), "TILE": (32, 64, 128)}),
    "quantized16": Space((4, 8), (2, 3, 4), {"OUTPUTS": (64, 128), "ROWS": (16, 32, 64, 128)}),
    "norm_row": Space((1, 2, 4, 8, 16)),
    "gate_row": Space((2, 4, 8), blocks={"COLUMNS": (512, 1024, 2048)}),
    "turn_heads": Space((1, 2, 4), blocks={"HEADS": (4, 8, 16)}),
    "list_candidates": Space((8, 16), blocks={"BLOCK": (2048, 4096, 8192)}),
    "draw_candidate": Space((4, 8), blocks={"BLOCK": (1024, 2048, 4096)}),
}


def candidates(kernel: str, size: int, usual: Launch) -> list[Launch]:
    """What is worth a try for what the table calls `size`, each once."""
    others = (launch for launch in SPACES[kernel].launches() if _suits(kernel, size, launch) and launch != usual)
    return [usual, *others]


def _suits(kernel: str, size: int, launch: Launch) -> bool:
    """A product's tile with more rows than there are computes for nothing, one with far fewer reads weights again."""
    return kernel != "quantized16" or size // 2 <= launch.blocks["ROWS"] <= size
