"""The layers of a decoder, one kernel after the other: runs anywhere, and is the plain twin of `kernels.cpu.layers`.

Two orders of the same: products add to the residual stream, or the norms after them do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from octavo_engine.kernels.attention import UNSCALED, Attend, AttentionKernels, AttentionShape, CacheScales
from octavo_engine.kernels.layers import LayerCache, LayersShape, LayerWeights, RunLayers, Step
from octavo_engine.kernels.linear import LinearKernels
from octavo_engine.kernels.pointwise import PointwiseKernels, StoreHeads
from octavo_engine.kernels.stored import EIGHT_BITS

LayersLoop = Literal["auto", "python", "native"]


@dataclass(frozen=True, slots=True)
class Kernels:
    """What computes with the weights, and so decides how they lie in memory."""

    attention: AttentionKernels
    linear: LinearKernels
    pointwise: PointwiseKernels
    loop: LayersLoop = "auto"  # auto: native where the three are compiled ones and all weights are packed

    @property
    def compiled(self) -> bool:
        """All three in C++."""
        return self.attention.name == self.linear.name == self.pointwise.name == "cpu"


@dataclass(frozen=True, slots=True)
class PlainLayers:
    """The plain RunLayers."""

    layers: Sequence[LayerWeights]
    shape: LayersShape
    kernels: Kernels

    def __call__(self, hidden: Tensor, step: Step, caches: Sequence[LayerCache]) -> Tensor:
        """Run them."""
        store_heads = self.kernels.pointwise.prepare_store(step.cos, step.sin, step.layout.slots)
        attends = self._prepare(step, hidden.dtype, caches[0][0])
        for number, (layer, attend, cache) in enumerate(zip(self.layers, attends, caches, strict=True), start=1):
            kept = step.kept if number == len(self.layers) else None
            hidden = self._layer(hidden, layer, store_heads, attend, cache, kept=kept)
        return hidden

    def _prepare(self, step: Step, dtype: torch.dtype, keys: Tensor) -> list[Attend]:
        """The step's attention for each layer, over caches like those `keys`. Layers of one kind share theirs: those
        with the same window, and if the cache has 8 bits with the same scales."""
        shape, block_size = self.shape, keys.shape[1]
        scaled = keys.dtype in EIGHT_BITS

        def attention(window: int | None, scales: CacheScales) -> Attend:
            scale = shape.head_dim**-0.5
            return self.kernels.attention.prepare(
                step.layout, AttentionShape(block_size, shape.kv_heads, shape.head_dim, dtype, scale, window, scales)
            )

        kinds = [
            (window, layer.cache_scales if scaled else UNSCALED)
            for window, layer in zip(shape.windows, self.layers, strict=True)
        ]
        made = {kind: attention(*kind) for kind in set(kinds)}
        return [made[kind] for kind in kinds]

    def _layer(
        self,
        hidden: Tensor,
        layer: LayerWeights,
        store_heads: StoreHeads,
        attend: Attend,
        cache: LayerCache,
        *,
        kept: Tensor | None,
    ) -> Tensor:
        """One layer: attention, then the MLP, each added to the residual stream `hidden [tokens, hidden]`."""
        rms_norm, eps = self.kernels.pointwise.rms_norm, self.shape.eps
        heads = layer.qkv(rms_norm(hidden, layer.input_norm, eps)).view(len(hidden), -1, self.shape.head_dim)
        queries = store_heads(heads, layer.head_norms, cache, layer.cache_scales)
        hidden, attended = rows_of(kept, hidden, attend(queries, *cache).flatten(1))
        if not len(hidden):
            return hidden
        hidden = layer.output.add_to(hidden, attended)
        return layer.down.add_to(hidden, layer.gate_up(rms_norm(hidden, layer.mlp_norm, eps)))


@dataclass(frozen=True, slots=True)
class SummingLayers(PlainLayers):
    """RunLayers for kernels that add to the residual stream and norm the sum in one launch: what a product gives is
    added by the norm after it."""

    def __call__(self, hidden: Tensor, step: Step, caches: Sequence[LayerCache]) -> Tensor:
        """Run them; overwrites `hidden`."""
        pointwise, eps = self.kernels.pointwise, self.shape.eps
        assert pointwise.add_rms_norm is not None
        store_heads = pointwise.prepare_store(step.cos, step.sin, step.layout.slots)
        attends = self._prepare(step, hidden.dtype, caches[0][0])
        normed, update = pointwise.rms_norm(hidden, self.layers[0].input_norm, eps), hidden
        for number, (layer, attend, cache) in enumerate(zip(self.layers, attends, caches, strict=True)):
            if number:
                normed = pointwise.add_rms_norm(hidden, update, layer.input_norm, eps)
            heads = layer.qkv(normed).view(len(hidden), -1, self.shape.head_dim)
            attended = attend(store_heads(heads, layer.head_norms, cache, layer.cache_scales), *cache)
            kept = step.kept if number == len(self.layers) - 1 else None
            hidden, attended = rows_of(kept, hidden, attended.flatten(1))
            if not len(hidden):
                return hidden
            normed = pointwise.add_rms_norm(hidden, layer.output(attended), layer.mlp_norm, eps)
            update = layer.down(layer.gate_up(normed))
        return hidden.add_(update)


def rows_of(kept: Tensor | None, *tensors: Tensor) -> list[Tensor]:
    """The kept rows of each; None: all."""
    return list(tensors) if kept is None else [tensor.index_select(0, kept) for tensor in tensors]


def choose_layers(layers: Sequence[LayerWeights], shape: LayersShape, kernels: Kernels) -> RunLayers:
    """How the layers are run, decided once."""
    if kernels.loop == "python" or not kernels.compiled:
        assert kernels.loop != "native", "the native loop runs compiled kernels only"
        kind = PlainLayers if kernels.pointwise.add_rms_norm is None else SummingLayers
        return kind(layers, shape, kernels)
    from octavo_engine.kernels.cpu import layers as native  # noqa: PLC0415 (the library is not on every machine)

    return native.PackedLayers(layers, shape) if native.packed(layers) else PlainLayers(layers, shape, kernels)
