"""The pieces of a decoder layer: functions of tensors and weights, with few calls each: on a CPU they count."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from octavo_engine.kernels.attention import Attend, AttentionKernels
from octavo_engine.kernels.linear import GatedProjection, Projection
from octavo_engine.model.architecture import ModelSpec
from octavo_engine.model.rope import rotate


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Query, key and value are one projection, since they read the same input."""

    input_norm: Tensor  # [hidden]
    qkv: Projection
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None
    output: Projection
    mlp_norm: Tensor  # [hidden]
    gate_up: GatedProjection
    down: Projection


@dataclass(frozen=True, slots=True)
class StepContext:
    """What every layer of one step shares, made once."""

    spec: ModelSpec
    kernels: AttentionKernels
    cos: Tensor  # [tokens, 1, head_dim]
    sin: Tensor
    slots: Tensor  # int64 [tokens]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / rms(x) * weight` over the last dimension (https://arxiv.org/abs/1910.07467)."""
    return F.rms_norm(x, weight.shape, weight, eps)


def attention(
    x: Tensor, layer: LayerWeights, step: StepContext, attend: Attend, cache: tuple[Tensor, Tensor]
) -> Tensor:
    """Normalized `[tokens, hidden]` -> the heads' outputs `[tokens, heads * head_dim]`; stores keys and values."""
    spec = step.spec
    heads = layer.qkv(x).view(len(x), -1, spec.head_dim)
    rotated = heads[:, : spec.heads + spec.kv_heads]  # queries and keys turn together
    if layer.query_norm is not None and layer.key_norm is not None:
        rotated = _norm_heads(rotated, layer.query_norm, layer.key_norm, spec)
    rotated = rotate(rotated, step.cos, step.sin)
    step.kernels.write_kv(rotated[:, spec.heads :], heads[:, spec.heads + spec.kv_heads :], *cache, step.slots)
    return attend(rotated[:, : spec.heads], *cache).flatten(1)


def _norm_heads(heads: Tensor, query_norm: Tensor, key_norm: Tensor, spec: ModelSpec) -> Tensor:
    """Qwen3: RMSNorm over each head, with one weight for the queries and one for the keys."""
    normed = F.rms_norm(heads, (spec.head_dim,), None, spec.eps)
    normed[:, : spec.heads] *= query_norm
    normed[:, spec.heads :] *= key_norm
    return normed


def layer_forward(
    hidden: Tensor, layer: LayerWeights, step: StepContext, attend: Attend, cache: tuple[Tensor, Tensor]
) -> Tensor:
    """One layer: attention, then the MLP, each added to the residual stream `hidden [tokens, hidden]`."""
    eps = step.spec.eps
    attended = attention(rms_norm(hidden, layer.input_norm, eps), layer, step, attend, cache)
    hidden = layer.output.add_to(hidden, attended)
    return layer.down.add_to(hidden, layer.gate_up(rms_norm(hidden, layer.mlp_norm, eps)))
