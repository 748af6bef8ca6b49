"""How a checkpoint's tensors become a Decoder's weights. Names are Hugging Face's; readers translate theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from octavo_engine.kernels.attention import AttentionKernels
from octavo_engine.kernels.linear import LinearKernels, Projection
from octavo_engine.kernels.pointwise import HeadNorms, PointwiseKernels
from octavo_engine.model.architecture import ModelSpec
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.layers import LayerWeights
from octavo_engine.model.parameters import Shape


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
    spec: ModelSpec,
    weights: Mapping[str, Tensor],
    kernels: AttentionKernels,
    linear_kernels: LinearKernels,
    pointwise: PointwiseKernels,
) -> Decoder:
    """A Decoder from the parameters named by `parameters_of`."""

    def projection(name: str) -> Projection:
        return linear_kernels.projection(weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def head_norms(layer: int) -> HeadNorms | None:
        if not spec.qk_norm:
            return None
        return HeadNorms(weights[f"{layer}.query_norm"], weights[f"{layer}.key_norm"], spec.eps)

    layers = [
        LayerWeights(
            input_norm=weights[f"{layer}.input_norm"],
            qkv=projection(f"{layer}.qkv"),
            head_norms=head_norms(layer),
            output=projection(f"{layer}.output"),
            mlp_norm=weights[f"{layer}.mlp_norm"],
            gate_up=linear_kernels.gated(weights[f"{layer}.gate_up.weight"], weights.get(f"{layer}.gate_up.bias")),
            down=projection(f"{layer}.down"),
        )
        for layer in range(spec.layers)
    ]
    return Decoder(
        spec=spec,
        kernels=kernels,
        pointwise=pointwise,
        embedding=weights["embedding"],
        layers=tuple(layers),
        final_norm=weights["final_norm"],
        head=linear_kernels.projection(weights["embedding" if spec.tied else "head"], None),
        parameter_bytes=sum(weight.nbytes for weight in weights.values()),
    )
