"""How a checkpoint's tensors become a Decoder's weights. Names are Hugging Face's; readers translate theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Protocol

import torch
from torch import Tensor

from octavo_engine.kernels.layers import LayersShape, LayerWeights
from octavo_engine.kernels.linear import GatedLinear, Linear, LinearKernels, Projection, Tied, plain_look_up
from octavo_engine.kernels.pointwise import HeadNorms
from octavo_engine.model.architecture import ModelSpec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers import Kernels, choose_layers
from octavo_engine.model.parameters import Shape, count_weights, parameters_of


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


def build_decoder(
    spec: ModelSpec, weights: Mapping[str, Tensor], kernels: Kernels, pool: Executor, on_layer: Callable[[], object]
) -> Decoder:
    """A Decoder from the parameters named by `parameters_of`, made in `pool`'s threads; raises what `weights` raises.

    Each parameter is asked for once, and let go once its packed form is there: `weights` may read it when it is asked
    for, and the model is never in memory twice. `on_layer` is called from this thread when a layer is done.
    """
    ends = pool.submit(_ends, spec, weights, kernels.linear)  # first: the largest parameters are among them
    layers = []
    for layer in pool.map(lambda number: _layer(spec, weights, kernels.linear, number), range(spec.layers)):
        layers.append(layer)
        on_layer()
    embedding, final_norm = ends.result()
    products = [embedding.head, *(product for layer in layers for product in layer.products)]
    by_row = not any(isinstance(product, Linear | GatedLinear) for product in products)  # torch's look at all rows
    return Decoder(
        spec=spec,
        look_up=embedding.look_up,
        layers=choose_layers(layers, _shape(spec), kernels),
        rms_norm=kernels.pointwise.rms_norm,
        final_norm=final_norm,
        head=embedding.head,
        parameter_bytes=count_weights(parameters_of(spec)) * final_norm.element_size(),
        batch_invariant=kernels.compiled and by_row,
    )


def _shape(spec: ModelSpec) -> LayersShape:
    return LayersShape(spec.heads, spec.kv_heads, spec.head_dim, spec.intermediate, spec.eps, spec.windows)


def _ends(spec: ModelSpec, weights: Mapping[str, Tensor], linear: LinearKernels) -> tuple[Tied, Tensor]:
    """Where tokens become numbers and numbers tokens, and the norm before that."""
    if spec.tied:
        return linear.tied(weights["embedding"]), weights["final_norm"]
    untied = Tied(plain_look_up(weights["embedding"]), linear.projection(weights["head"], None))
    return untied, weights["final_norm"]


def _layer(spec: ModelSpec, weights: Mapping[str, Tensor], linear: LinearKernels, layer: int) -> LayerWeights:
    def projection(name: str) -> Projection:
        return linear.projection(weights[f"{layer}.{name}.weight"], weights.get(f"{layer}.{name}.bias"))

    norms = HeadNorms(weights[f"{layer}.query_norm"], weights[f"{layer}.key_norm"], spec.eps) if spec.qk_norm else None
    return LayerWeights(
        input_norm=weights[f"{layer}.input_norm"],
        qkv=projection("qkv"),
        head_norms=norms,
        output=projection("output"),
        mlp_norm=weights[f"{layer}.mlp_norm"],
        gate_up=linear.gated(weights[f"{layer}.gate_up.weight"], weights.get(f"{layer}.gate_up.bias")),
        down=projection("down"),
    )
