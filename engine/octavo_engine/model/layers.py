"""The pieces of a decoder layer. Plain functions of tensors and weights: few calls a layer, since on a CPU each one counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from octavo_engine.kernels.attention import Attend, AttentionKernels
from octavo_engine.model.architecture import ModelSpec
from octavo_engine.model.rope import rotate


@dataclass(frozen=True, slots=True)
class Linear:
    """`x [tokens, in] -> [tokens, out]`."""

    weight: Tensor  # [out, in]
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it."""
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Projections that read the same input are one matrix: rows of query, key, value; of gate, up."""

    input_norm: Tensor  # [hidden]
    qkv: Linear
    query_norm: Tensor | None  # [head_dim]
    key_norm: Tensor | None
    output: Linear
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class StepContext:
    """What every layer of one step shares, made once."""

    cos: Tensor  # [tokens, 1, head_dim]
    sin: Tensor
    slots: Tensor  # int64 [tokens]
    kernels: AttentionKernels


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / rms(x) * weight` over the last dimension (https://arxiv.org/abs/1910.07467)."""
    return F.rms_norm(x, weight.shape, weight, eps)


def attention(
    x: Tensor, layer: LayerWeights, spec: ModelSpec, step: StepContext, attend: Attend, cache: tuple[Tensor, Tensor]
) -> Tensor:
    """Normalized hidden `[tokens, hidden]` -> the attention's contribution; stores the tokens' keys and values first."""
    heads = layer.qkv(x).unflatten(-1, (-1, spec.head_dim))
    rotated = heads[:, : spec.heads + spec.kv_heads]  # queries and keys turn together
    if layer.query_norm is not None and layer.key_norm is not None:
        rotated = _norm_heads(rotated, layer.query_norm, layer.key_norm, spec)
    rotated = rotate(rotated, step.cos, step.sin)
    step.kernels.write_kv(rotated[:, spec.heads :], heads[:, spec.heads + spec.kv_heads :], *cache, step.slots)
    return layer.output(attend(rotated[:, : spec.heads], *cache).flatten(1))


def _norm_heads(heads: Tensor, query_norm: Tensor, key_norm: Tensor, spec: ModelSpec) -> Tensor:
    """Qwen3: RMSNorm over each head, with one weight for the queries and one for the keys."""
    normed = F.rms_norm(heads, (spec.head_dim,), None, spec.eps)
    normed[:, : spec.heads] *= query_norm
    normed[:, spec.heads :] *= key_norm
    return normed


def mlp(x: Tensor, layer: LayerWeights) -> Tensor:
    """Gated: `down(silu(gate) * up)`."""
    gate, up = layer.gate_up(x).chunk(2, dim=-1)
    return layer.down(F.silu(gate).mul_(up))
