"""Paged attention for CUDA: which of the kernels compute a step, decided once and called by each layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from octavo_engine.kernels.attention import Attend, AttentionKernels, AttentionShape, StepLayout
from octavo_engine.kernels.triton.decode import Decodes
from octavo_engine.kernels.triton.device import target_of
from octavo_engine.kernels.triton.kv_write import write_kv
from octavo_engine.kernels.triton.mixed import Mixed
from octavo_engine.kernels.triton.splits import LONGEST_PIECE
from octavo_engine.kernels.triton.targets import Target


def prepare(layout: StepLayout, shape: AttentionShape) -> Attend:
    """What each layer calls; nothing is read back from the device."""
    parts = parts_of(layout, shape, target_of(layout.slots.device))

    def attend(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for part in parts:
            part.attend(query, key_cache, value_cache, output)
        return output

    return attend


def parts_of(layout: StepLayout, shape: AttentionShape, target: Target) -> Sequence[Decodes | Mixed]:
    """A batch of decodes has a kernel of its own. Beside chunks they share the chunks' launch, unless a context is so
    long that it should be cut: a tile of many rows for one token would then be waited for."""
    sequences = len(layout.context_lens)
    if layout.num_decodes == sequences:
        return [Decodes.of(layout, shape, target)]
    seen = min(layout.max_context, shape.sliding_window or layout.max_context)
    if layout.num_decodes == 0 or seen <= LONGEST_PIECE:
        return [Mixed.of(layout, shape, target, skipped=0)]
    return [Decodes.of(layout, shape, target), Mixed.of(layout, shape, target, skipped=layout.num_decodes)]


KERNELS = AttentionKernels("triton", write_kv, prepare)
