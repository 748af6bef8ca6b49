"""How a checkpoint's tensors become a Decoder's weights. Names are Hugging Face's; readers translate theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from octavo_engine.kernels.attention import UNSCALED, CacheScales
from octavo_engine.kernels.layers import LayersShape, LayerWeights
from octavo_engine.kernels.linear import GatedLinear, Linear, LinearKernels, LookUp, Tied, plain_look_up
from octavo_engine.kernels.pointwise import HeadNorms
from octavo_engine.kernels.quantized import QuantizedGatedLinear, QuantizedLinear, QuantizedMatrix
from octavo_engine.kernels.side_by_side import Weight, gated, products_in, projection
from octavo_engine.model.compute.decoder import Decoder, Head
from octavo_engine.model.compute.layers import Kernels, choose_layers
from octavo_engine.model.tensors.costs import weight_bytes
from octavo_engine.model.tensors.parameters import Part, Shape
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.model.weights.joined import Split

LOOKS_AT_ALL_ROWS = (Linear, GatedLinear, QuantizedLinear, QuantizedGatedLinear)  # torch's products


class TensorSource(Protocol):
    """A checkpoint's tensors, by Hugging Face name."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shape of every tensor the checkpoint holds, from its headers."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """The bytes each tensor takes in the checkpoint."""

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """The tensor on the CPU, in `dtype` or as stored; raises CheckpointInvalid. Called from several threads."""

    def quantized(self, part: Part) -> QuantizedMatrix | None:
        """A product's weight on the CPU, in few bits; None where it is not stored so, and to be read as a tensor.

        Raises CheckpointInvalid. Called from several threads.
        """


class Weights(Protocol):
    """The parameters named by `parameters_of`. Each look-up reads one anew, and keeps nothing; from any thread."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the model's numbers, and of all weights that are plain."""

    def __getitem__(self, name: str, /) -> Tensor:
        """A plain parameter; raises KeyError, or CheckpointInvalid for a tensor that cannot be read."""

    def get(self, name: str, /) -> Tensor | None:
        """The same, if there is one of that name."""

    def matrix(self, name: str) -> Sequence[Weight]:
        """A product's weight: one, or several with some outputs each where they cannot be one."""


def build_decoder(
    spec: ModelSpec,
    weights: Weights,
    kernels: Kernels,
    pool: Executor,
    on_layer: Callable[[], object],
    *,
    split: Split | None = None,
    scales: Sequence[CacheScales] = (),
) -> Decoder:
    """A Decoder from its parameters, made in `pool`'s threads; raises what `weights` raises.

    With `split`, spec and weights are those of one rank's part, and its products are joined with the others'. `scales`
    are each layer's, of a cache of 8 bits; none where all are 1.

    Each parameter is asked for once, and let go once its packed form is there: `weights` may read it when it is asked
    for, and the model is never in memory twice. `on_layer` is called from this thread when a layer is done.
    """
    ends = pool.submit(_ends, spec, weights, kernels.linear)  # first: the largest parameters are among them
    layers = []
    made = pool.map(lambda number: _layer(spec, weights, kernels.linear, number), range(spec.layers))
    for layer, own in zip(made, scales or (UNSCALED,) * spec.layers, strict=True):
        layers.append(replace(layer, cache_scales=own))
        on_layer()
    embedding, final_norm = ends.result()
    joined = [embedding.head, *(product for layer in layers for product in layer.products)]
    products = [product for one in joined for product in products_in(one)]
    by_row = not any(isinstance(product, LOOKS_AT_ALL_ROWS) for product in products)
    look_up: LookUp = embedding.look_up
    head: Head = embedding.head
    if split is not None:
        layers = [split.layer(layer) for layer in layers]
        look_up, head = split.ends(embedding)
    return Decoder(
        spec=spec,
        look_up=look_up,
        layers=choose_layers(layers, _shape(spec), kernels),
        rms_norm=kernels.pointwise.rms_norm,
        final_norm=final_norm,
        head=head,
        parameter_bytes=weight_bytes(spec, final_norm.element_size()),
        batch_invariant=kernels.compiled and by_row,
    )


def _shape(spec: ModelSpec) -> LayersShape:
    return LayersShape(spec.heads, spec.kv_heads, spec.head_dim, spec.intermediate, spec.eps, spec.windows)


def _ends(spec: ModelSpec, weights: Weights, linear: LinearKernels) -> tuple[Tied, Tensor]:
    """Where tokens become numbers and numbers tokens, and the norm before that."""
    (embedding,) = weights.matrix("embedding")
    if isinstance(embedding, QuantizedMatrix):
        if spec.tied:
            return linear.quantized_tied(embedding, weights.dtype), weights["final_norm"]
        look_up = linear.quantized_tied(embedding, weights.dtype).look_up
    else:
        if spec.tied:
            return linear.tied(embedding), weights["final_norm"]
        look_up = plain_look_up(embedding)
    return Tied(look_up, projection(linear, weights.matrix("head"), None, weights.dtype)), weights["final_norm"]


def _layer(spec: ModelSpec, weights: Weights, linear: LinearKernels, layer: int) -> LayerWeights:
    def product(name: str) -> tuple[LinearKernels, Sequence[Weight], Tensor | None, torch.dtype]:
        place = f"{layer}.{name}"
        return linear, weights.matrix(f"{place}.weight"), weights.get(f"{place}.bias"), weights.dtype

    norms = HeadNorms(weights[f"{layer}.query_norm"], weights[f"{layer}.key_norm"], spec.eps) if spec.qk_norm else None
    return LayerWeights(
        input_norm=weights[f"{layer}.input_norm"],
        qkv=projection(*product("qkv")),
        head_norms=norms,
        output=projection(*product("output")),
        mlp_norm=weights[f"{layer}.mlp_norm"],
        gate_up=gated(*product("gate_up")),
        down=projection(*product("down")),
    )
