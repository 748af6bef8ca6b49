"""How each kernel is launched on each kind of device: a table of plain values, and nothing that is measured at a start.

A row serves the compute capability it names and all later ones, up to the next row of its kernel: what is not in the
table runs as its nearest relative does. A row that was measured on a device goes before the table, for its own size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

KIB = 1024
FUSED = {"enable_fp_fusion": True}
"""For every launch: a product and the sum after it are rounded once. Written here, as Triton's default will change."""


@dataclass(frozen=True, slots=True)
class Target:
    """What kernels and plans need to know of a device."""

    capability: int  # 10 x major + minor: 80 is A100's, 90 H100's and H200's, 100 B200's
    processors: int  # streaming multiprocessors, each of which runs a few programs at a time
    measured: tuple[Row, ...] = field(default=(), hash=False)  # on this very device, by `octavo tune`

    @property
    def shared_bytes(self) -> int:
        """The most shared memory of one program (CUDA's programming guide, table of compute capabilities)."""
        return {80: 163, 87: 163, 90: 227, 100: 227, 103: 227}.get(self.capability, 99) * KIB

    @property
    def has_e4m3(self) -> bool:
        """Whether it converts 8-bit floats with 4 bits of exponent; those with 5 need only a shift, on any device."""
        return self.capability >= 89


A100, H100, B200 = Target(80, 108), Target(90, 132), Target(100, 148)


@dataclass(frozen=True, slots=True)
class Launch:
    """One way to launch a kernel."""

    warps: int  # of one program
    stages: int  # tiles on their way from memory at a time
    blocks: Mapping[str, int]  # sizes that are compiled in, by the name of the kernel's argument

    @property
    def arguments(self) -> dict[str, int | bool]:
        """Keyword arguments of a launch."""
        return {"num_warps": self.warps, "num_stages": self.stages, **self.blocks, **FUSED}


class Row(NamedTuple):
    """A launch, and what it is for."""

    kernel: str
    capability: int  # the least
    size: int  # the largest that it is for; which size, the kernel says
    launch: Launch


def attention(kernel: str, capability: int, dim: int, *, rows: int, tile: int, warps: int, stages: int) -> Row:
    """A row of an attention kernel; its size is the number of a head's dimensions, rounded up to a power of two."""
    return Row(kernel, capability, dim, Launch(warps, stages, {"ROWS": rows, "TILE": tile}))


def product(kernel: str, capability: int, rows: int, *, outputs: int, tile: int, warps: int, stages: int) -> Row:
    """A row of the quantized product; its size is the number of x's rows, from 16 to 128 and all above."""
    return Row(kernel, capability, rows, Launch(warps, stages, {"OUTPUTS": outputs, "ROWS": tile}))


def pointwise(kernel: str, size: int, warps: int, **blocks: int) -> Row:
    """A row of a kernel that only reads and writes, on any device."""
    return Row(kernel, 80, size, Launch(warps, 1, blocks))


# Names end with the bits of a query's numbers, and `_8` where the cache has 8. 32-bit products do not go through the
# tensor cores, so their tiles are small. A decode's ROWS are the least; more heads that share a key take more. Of three
# stages one is the block table's, so one tile of keys is on its way beside the one that is computed; tiles of 8 bits
# need two. No kernel spills, which the tests read from what is compiled, but for 32-bit queries over 8-bit keys of 256
# dimensions, which no model that is served has: 200 bytes of registers there.
TABLE = (
    attention("decode16", 80, 128, rows=16, tile=64, warps=4, stages=3),
    attention("decode16", 80, 256, rows=16, tile=32, warps=4, stages=3),
    attention("decode16_8", 80, 128, rows=16, tile=32, warps=4, stages=5),
    attention("decode16_8", 80, 256, rows=16, tile=32, warps=4, stages=5),
    attention("decode16_8", 90, 128, rows=16, tile=64, warps=4, stages=5),
    attention("decode16_8", 90, 256, rows=16, tile=32, warps=4, stages=7),
    attention("decode16_8", 100, 128, rows=16, tile=64, warps=4, stages=4),
    attention("decode32", 80, 128, rows=16, tile=32, warps=4, stages=3),
    attention("decode32", 80, 256, rows=16, tile=16, warps=4, stages=3),
    attention("decode32", 90, 128, rows=16, tile=32, warps=8, stages=3),
    attention("decode32_8", 80, 128, rows=16, tile=16, warps=8, stages=3),
    attention("decode32_8", 80, 256, rows=16, tile=16, warps=8, stages=3),
    attention("mixed16", 80, 128, rows=64, tile=64, warps=8, stages=3),
    attention("mixed16", 80, 256, rows=64, tile=32, warps=8, stages=3),
    attention("mixed16", 90, 128, rows=128, tile=64, warps=8, stages=3),
    attention("mixed16", 90, 256, rows=64, tile=32, warps=8, stages=3),
    attention("mixed16_8", 80, 128, rows=64, tile=64, warps=8, stages=3),
    attention("mixed16_8", 80, 256, rows=64, tile=32, warps=8, stages=3),
    attention("mixed16_8", 90, 128, rows=128, tile=64, warps=8, stages=3),
    attention("mixed16_8", 90, 256, rows=64, tile=32, warps=8, stages=3),
    attention("mixed32", 80, 128, rows=16, tile=32, warps=8, stages=3),
    attention("mixed32", 80, 256, rows=16, tile=16, warps=8, stages=3),
    attention("mixed32_8", 80, 128, rows=16, tile=16, warps=8, stages=3),
    attention("mixed32_8", 80, 256, rows=16, tile=16, warps=8, stages=3),
    product("quantized16", 80, 16, outputs=64, tile=16, warps=4, stages=4),
    product("quantized16", 80, 32, outputs=64, tile=32, warps=4, stages=4),
    product("quantized16", 80, 64, outputs=64, tile=64, warps=4, stages=3),
    product("quantized16", 80, 128, outputs=128, tile=64, warps=8, stages=2),
    product("quantized16", 90, 16, outputs=64, tile=16, warps=4, stages=4),
    product("quantized16", 90, 32, outputs=64, tile=32, warps=4, stages=4),
    product("quantized16", 90, 64, outputs=64, tile=64, warps=4, stages=3),
    product("quantized16", 90, 128, outputs=128, tile=64, warps=8, stages=3),
    product("quantized32", 80, 128, outputs=32, tile=16, warps=4, stages=2),
    pointwise("norm_row", 1024, warps=1),  # sizes: a row's numbers
    pointwise("norm_row", 4096, warps=4),
    pointwise("norm_row", 8192, warps=8),
    pointwise("norm_row", 16384, warps=16),
    pointwise("gate_row", 1, warps=4, COLUMNS=1024),  # those without sizes have 1
    pointwise("turn_heads", 64, warps=2, HEADS=8),  # half a head's numbers
    pointwise("turn_heads", 128, warps=4, HEADS=8),
    pointwise("list_candidates", 1, warps=16, BLOCK=4096),
    pointwise("draw_candidate", 1, warps=8, BLOCK=1024),
)


def launch_of(kernel: str, capability: int, size: int, table: Iterable[Row] = TABLE) -> Launch:
    """The row with the latest capability that the device has, and of those the smallest size that is enough.

    Raises LookupError where no row is enough: that is a mistake in the table, or a model that no kernel was made for.
    """
    fitting = [row for row in table if row.kernel == kernel and row.capability <= capability and row.size >= size]
    if not fitting:
        raise LookupError(f"no launch of {kernel} for size {size} on compute capability {capability}")
    return max(fitting, key=lambda row: (row.capability, -row.size)).launch


@cache
def launch_on(target: Target, kernel: str, size: int) -> Launch:
    """The launch on that device: what was measured there for that size, else the table's.

    A measurement says nothing of smaller sizes: it would do for them, but the table has rows that were made for them.
    """
    own = (row.launch for row in target.measured if (row.kernel, row.size) == (kernel, size))
    return next(own, None) or launch_of(kernel, target.capability, size)
