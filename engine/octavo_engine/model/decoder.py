"""One decoder for every supported family: its spec says which switches are on. Computes; reads no file, keeps no state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo_engine.kernels.attention import AttentionKernels, AttentionShape, StepLayout
from octavo_engine.model.architecture import ModelSpec
from octavo_engine.model.layers import LayerWeights, Linear, StepContext, attention, mlp, rms_norm
from octavo_engine.model.rope import angles, inverse_frequencies


class Decoder:
    """A transformer decoder over a paged cache."""

    def __init__(
        self,
        spec: ModelSpec,
        embedding: Tensor,
        layers: Sequence[LayerWeights],
        final_norm: Tensor,
        head: Linear,
        kernels: AttentionKernels,
    ) -> None:
        self.spec, self.kernels = spec, kernels
        self.embedding, self.layers, self.final_norm, self.head = embedding, tuple(layers), final_norm, head
        self._frequencies = inverse_frequencies(spec.rope, spec.head_dim).to(embedding.device)

    @torch.inference_mode()
    def forward(self, tokens: Tensor, layout: StepLayout, caches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Compute one step and write its keys and values.

        tokens int64 `[tokens]`; caches: per layer, keys and values `[blocks, block_size, kv_heads, head_dim]`.
        Returns the final hidden states `[tokens, hidden]`, ready for `logits`.
        """
        spec, block_size = self.spec, caches[0][0].shape[1]
        cos, sin = angles(layout.positions, self._frequencies, self.embedding.dtype)
        step = StepContext(cos, sin, layout.slots, self.kernels)
        shapes = {window: AttentionShape(block_size, spec.head_dim**-0.5, window) for window in set(spec.windows)}
        attends = {window: self.kernels.prepare(layout, shape) for window, shape in shapes.items()}
        hidden = F.embedding(tokens, self.embedding)
        for layer, window, cache in zip(self.layers, spec.windows, caches, strict=True):
            normed = rms_norm(hidden, layer.input_norm, spec.eps)
            hidden = hidden.add_(attention(normed, layer, spec, step, attends[window], cache))
            hidden = hidden.add_(mlp(rms_norm(hidden, layer.mlp_norm, spec.eps), layer))
        return rms_norm(hidden, self.final_norm, spec.eps)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `[n, hidden]` from `forward` -> float32 `[n, vocab]`."""
        return self.head(hidden).float()

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all weights; a tied embedding counts once."""
        seen = {tensor.data_ptr(): tensor.nbytes for tensor in self._tensors()}
        return sum(seen.values())

    def _tensors(self) -> list[Tensor]:
        found = [self.embedding, self.final_norm, self.head.weight]
        for layer in self.layers:
            found += [layer.input_norm, layer.mlp_norm]
            found += [norm for norm in (layer.query_norm, layer.key_norm) if norm is not None]
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down):
                found += [linear.weight] if linear.bias is None else [linear.weight, linear.bias]
        return found
