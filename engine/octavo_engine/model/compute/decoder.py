"""One decoder for every family: its spec says which switches are on. Computes; reads no file, keeps no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from octavo_engine.kernels.attention import StepLayout
from octavo_engine.kernels.layers import LayerCache, RunLayers, Step
from octavo_engine.kernels.linear import LookUp
from octavo_engine.kernels.pointwise import RmsNorm
from octavo_engine.model.compute.rope import angles, inverse_frequencies
from octavo_engine.model.values.architecture import ModelSpec


class Head(Protocol):
    """The projection to the vocabulary: the one product whose outcome is never rounded."""

    def wide(self, x: Tensor, /) -> Tensor:
        """`[n, hidden]` -> float32 `[n, vocab]`."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A transformer decoder over a paged cache."""

    spec: ModelSpec
    look_up: LookUp  # of the embedding
    layers: RunLayers
    rms_norm: RmsNorm
    final_norm: Tensor  # [hidden]
    head: Head  # to the vocabulary
    parameter_bytes: int  # of all weights as they are in memory
    batch_invariant: bool  # a token's numbers are the same bits whatever else is in its step
    frequencies: Tensor = field(init=False)  # float32 [head_dim / 2], radians a position

    def __post_init__(self) -> None:
        frequencies = inverse_frequencies(self.spec.rope, self.spec.head_dim).to(self.final_norm.device)
        object.__setattr__(self, "frequencies", frequencies)

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, layout: StepLayout, caches: Sequence[LayerCache], kept: Tensor | None = None
    ) -> Tensor:
        """Compute one step and write its keys and values.

        tokens int64 `[tokens]`; caches: per layer, keys and values `[blocks, block_size, kv_heads, head_dim]`.
        kept: int64 `[kept]`, rising: the rows to return; None: all.
        Returns the final hidden states `[kept or tokens, hidden]`, ready for `logits`.
        """
        cos, sin = angles(layout.positions, self.frequencies, self.final_norm.dtype, self.spec.rope.attention_factor)
        hidden = self.layers(self.look_up(tokens), Step(layout, cos, sin, kept), caches)
        return self.rms_norm(hidden, self.final_norm, self.spec.eps) if len(hidden) else hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `[n, hidden]` from `forward` -> float32 `[n, vocab]`."""
        return self.head.wide(hidden)
