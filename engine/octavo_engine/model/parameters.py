"""Which tensors a spec needs, under which names and in which shapes. Names are Hugging Face's; no torch here.

Everything is checked before the first byte of a weight is read, and before a pod is made for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from octavo_engine.errors import CheckpointInvalid
from octavo_engine.model.architecture import ModelSpec

Shape = tuple[int, ...]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
COMPUTED_SUFFIXES = (".rotary_emb.inv_freq",)  # old checkpoints store what the config already says


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of the checkpoint that fills some rows of a parameter."""

    name: str
    shape: Shape


Parameters = dict[str, tuple[Part, ...]]  # our name -> the parts, stacked along the first dimension


def parameters_of(spec: ModelSpec) -> Parameters:
    """Every parameter of the decoder and the checkpoint's tensors it is made of."""
    found: Parameters = {
        "embedding": (Part(EMBEDDING, (spec.vocab, spec.hidden)),),
        "final_norm": (Part("model.norm.weight", (spec.hidden,)),),
    }
    if not spec.tied:
        found["head"] = (Part(HEAD, (spec.vocab, spec.hidden)),)
    for layer in range(spec.layers):
        found |= _layer_parameters(spec, layer)
    return found


def _layer_parameters(spec: ModelSpec, layer: int) -> Parameters:
    source, query, kv = f"model.layers.{layer}", spec.query_size, spec.kv_size
    found: Parameters = {}

    def linear(target: str, width: int, bias: bool, **rows: int) -> None:
        parts = [(f"{source}.{name.replace('__', '.')}", size) for name, size in rows.items()]
        found[f"{layer}.{target}.weight"] = tuple(Part(f"{name}.weight", (size, width)) for name, size in parts)
        if bias:
            found[f"{layer}.{target}.bias"] = tuple(Part(f"{name}.bias", (size,)) for name, size in parts)

    def norm(target: str, name: str, size: int) -> None:
        found[f"{layer}.{target}"] = (Part(f"{source}.{name}.weight", (size,)),)

    norm("input_norm", "input_layernorm", spec.hidden)
    norm("mlp_norm", "post_attention_layernorm", spec.hidden)
    if spec.qk_norm:
        norm("query_norm", "self_attn.q_norm", spec.head_dim)
        norm("key_norm", "self_attn.k_norm", spec.head_dim)
    linear("qkv", spec.hidden, spec.qkv_bias, self_attn__q_proj=query, self_attn__k_proj=kv, self_attn__v_proj=kv)
    linear("output", query, spec.output_bias, self_attn__o_proj=spec.hidden)
    linear("gate_up", spec.hidden, spec.mlp_bias, mlp__gate_proj=spec.intermediate, mlp__up_proj=spec.intermediate)
    linear("down", spec.intermediate, spec.mlp_bias, mlp__down_proj=spec.hidden)
    return found


def count_weights(parameters: Parameters) -> int:
    """How many numbers all parameters hold."""
    return sum(math.prod(part.shape) for parts in parameters.values() for part in parts)


def check_tensors(spec: ModelSpec, parameters: Parameters, shapes: Mapping[str, Shape]) -> None:
    """Raise CheckpointInvalid, naming the tensor, unless `shapes` is exactly what the spec needs."""
    expected = {part.name: part.shape for parts in parameters.values() for part in parts}
    for name, shape in expected.items():
        if name not in shapes:
            raise CheckpointInvalid(f"tensor {name} is missing from the checkpoint")
        if tuple(shapes[name]) != shape:
            raise CheckpointInvalid(f"tensor {name} has the shape {list(shapes[name])}; the config says {list(shape)}")
    for name in shapes:
        if name not in expected and not _harmless(name, spec):
            raise CheckpointInvalid(f"tensor {name} is in the checkpoint, but its config has no place for it")


def _harmless(name: str, spec: ModelSpec) -> bool:
    """A tied head that is stored nevertheless, or a table that the config implies."""
    return (spec.tied and name == HEAD) or name.endswith(COMPUTED_SUFFIXES)
