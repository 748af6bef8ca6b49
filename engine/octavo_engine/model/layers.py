"""The pieces of a decoder layer: functions of tensors and weights, with few calls each: on a CPU they count."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from octavo_engine.kernels.attention import Attend
from octavo_engine.kernels.linear import GatedProjection, Projection
from octavo_engine.kernels.pointwise import HeadNorms, PointwiseKernels, StoreHeads
from octavo_engine.model.architecture import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Query, key and value are one projection, since they read the same input."""

    input_norm: Tensor  # [hidden]
    qkv: Projection
    head_norms: HeadNorms | None
    output: Projection
    mlp_norm: Tensor  # [hidden]
    gate_up: GatedProjection
    down: Projection


@dataclass(frozen=True, slots=True)
class StepContext:
    """What every layer of one step shares, made once."""

    spec: ModelSpec
    kernels: PointwiseKernels
    store_heads: StoreHeads


def attention(
    x: Tensor, layer: LayerWeights, step: StepContext, attend: Attend, cache: tuple[Tensor, Tensor]
) -> Tensor:
    """Normalized `[tokens, hidden]` -> the heads' outputs `[tokens, heads * head_dim]`; stores keys and values."""
    heads = layer.qkv(x).view(len(x), -1, step.spec.head_dim)
    queries = step.store_heads(heads, layer.head_norms, cache)
    return attend(queries, *cache).flatten(1)


def layer_forward(
    hidden: Tensor, layer: LayerWeights, step: StepContext, attend: Attend, cache: tuple[Tensor, Tensor]
) -> Tensor:
    """One layer: attention, then the MLP, each added to the residual stream `hidden [tokens, hidden]`."""
    rms_norm, eps = step.kernels.rms_norm, step.spec.eps
    attended = attention(rms_norm(hidden, layer.input_norm, eps), layer, step, attend, cache)
    hidden = layer.output.add_to(hidden, attended)
    return layer.down.add_to(hidden, layer.gate_up(rms_norm(hidden, layer.mlp_norm, eps)))
