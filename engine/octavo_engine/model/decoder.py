"""One decoder for every family: its spec says which switches are on. Computes; reads no file, keeps no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from octavo_engine.kernels.attention import Attend, AttentionKernels, AttentionShape, StepLayout
from octavo_engine.kernels.linear import LookUp, Projection
from octavo_engine.kernels.pointwise import PointwiseKernels
from octavo_engine.model.architecture import ModelSpec
from octavo_engine.model.layers import LayerWeights, StepContext, layer_forward
from octavo_engine.model.rope import angles, inverse_frequencies


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A transformer decoder over a paged cache."""

    spec: ModelSpec
    kernels: AttentionKernels
    pointwise: PointwiseKernels
    look_up: LookUp  # of the embedding
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head: Projection  # to the vocabulary
    parameter_bytes: int  # of all weights as they are in memory
    frequencies: Tensor = field(init=False)  # float32 [head_dim / 2], radians a position

    def __post_init__(self) -> None:
        frequencies = inverse_frequencies(self.spec.rope, self.spec.head_dim).to(self.final_norm.device)
        object.__setattr__(self, "frequencies", frequencies)

    @torch.inference_mode()
    def forward(self, tokens: Tensor, layout: StepLayout, caches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Compute one step and write its keys and values.

        tokens int64 `[tokens]`; caches: per layer, keys and values `[blocks, block_size, kv_heads, head_dim]`.
        Returns the final hidden states `[tokens, hidden]`, ready for `logits`.
        """
        attends = self._prepare(layout, block_size=caches[0][0].shape[1])
        cos, sin = angles(layout.positions, self.frequencies, self.final_norm.dtype)
        step = StepContext(self.spec, self.pointwise, self.pointwise.prepare_store(cos, sin, layout.slots))
        hidden = self.look_up(tokens)
        for layer, window, cache in zip(self.layers, self.spec.windows, caches, strict=True):
            hidden = layer_forward(hidden, layer, step, attends[window], cache)
        return self.pointwise.rms_norm(hidden, self.final_norm, self.spec.eps)

    def _prepare(self, layout: StepLayout, block_size: int) -> dict[int | None, Attend]:
        """The step's attention for each window that some layer has."""
        spec, dtype = self.spec, self.final_norm.dtype
        scale = spec.head_dim**-0.5
        return {
            window: self.kernels.prepare(
                layout, AttentionShape(block_size, spec.kv_heads, spec.head_dim, dtype, scale, window)
            )
            for window in set(spec.windows)
        }

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `[n, hidden]` from `forward` -> float32 `[n, vocab]`."""
        return self.head.wide(hidden)
