"""What CUDA graphs of decodes hold of a device's memory, at most: it is set aside before the cache gets the rest.

A step of the largest size: its rows, what its pieces leave behind, the tensors that are filled before a replay, the
block that padding has; and what a driver and a library of products keep. The last two are estimates from what such a
step consists of, and generous.
"""

from __future__ import annotations

from collections.abc import Sequence

from octavo_engine.kernels.triton.splits import most_left_behind
from octavo_engine.memory import CacheGeometry
from octavo_engine.model.values.architecture import ModelSpec

LAUNCHES_OF_LAYER = 16  # and fewer
LAUNCH_BYTES = 32 * 1024  # that a driver keeps for a recorded launch: its arguments, code and places on the device
WORKSPACE_BYTES = 64 * 1024**2  # cuBLAS's for the stream that records: it asks for 32 MiB on an H100, 8 on others
ROW_BYTES = 8 + 8 + 8 + 4  # of a sequence, besides its table: token, position, slot, length
INDEX_BYTES = 4


def step_row(spec: ModelSpec) -> int:
    """Numbers that one token's way through a layer takes at most at a time, logits left out."""
    return 4 * spec.hidden + 3 * spec.intermediate + 2 * (spec.query_size + 2 * spec.kv_size)


def graph_bytes(
    spec: ModelSpec, geometry: CacheGeometry, sizes: Sequence[int], *, width: int, max_model_len: int
) -> int:
    """Bytes for graphs of these `sizes`, ascending; 0 where there are none. `width`: bytes of one weight."""
    if not sizes:
        return 0
    rows = sizes[-1]
    outcomes = sum(sizes) * spec.hidden * width
    step = rows * step_row(spec) * width + most_left_behind(spec.heads // spec.kv_heads, spec.head_dim)
    inputs = rows * (ROW_BYTES + INDEX_BYTES * geometry.blocks_for(max_model_len)) + geometry.block_bytes
    kept = len(sizes) * spec.layers * LAUNCHES_OF_LAYER * LAUNCH_BYTES + WORKSPACE_BYTES
    return step + outcomes + inputs + kept
