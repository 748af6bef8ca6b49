"""Which tensors a spec needs, under which names and in which shapes. Names are Hugging Face's; no torch here.

Everything is checked before the first byte of a weight is read, and before a pod is made for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from octavo_engine.errors import CheckpointInvalid
from octavo_engine.model.tensors import packed_tensors
from octavo_engine.model.tensors.kv_scales import all_names, names_in
from octavo_engine.model.tensors.packed_tensors import Stored
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.model.values.quantization import Scheme

Shape = tuple[int, ...]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
WEIGHT = ".weight"
COMPUTED_SUFFIXES = (".rotary_emb.inv_freq",)  # old checkpoints store what the config already says


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of the checkpoint, or what several tell together, that fills some rows of a parameter."""

    name: str  # of the plain tensor; a quantized one has others in its place
    shape: Shape
    scheme: Scheme | None = None  # of a quantized one, whose shape is `[out, in]`
    piece: tuple[range, ...] = ()  # what is wanted of it, in each dimension; (): the whole

    @property
    def wanted(self) -> Shape:
        """The shape of what is wanted of it."""
        return tuple(map(len, self.piece)) or self.shape

    @property
    def index(self) -> tuple[slice, ...]:
        """Where in the whole that is."""
        return tuple(slice(part.start, part.stop) for part in self.piece)

    @property
    def module(self) -> str:
        """What all its tensors' names begin with."""
        return self.name.removesuffix(WEIGHT)

    @property
    def tensors(self) -> dict[str, Stored]:
        """The tensors that the checkpoint has for it, by name."""
        if self.scheme is None:
            return {self.name: Stored((self.shape,))}
        outputs, inputs = self.shape
        return packed_tensors.tensors_of(self.module, (outputs, inputs), self.scheme)


Parameters = dict[str, tuple[Part, ...]]  # our name -> the parts, stacked along the first dimension


def parameters_of(spec: ModelSpec) -> Parameters:
    """Every parameter of the decoder and the checkpoint's tensors it is made of."""
    found: Parameters = {
        "embedding": (_embedding(spec),),
        "final_norm": (Part("model.norm.weight", (spec.hidden,)),),
    }
    if not spec.tied:
        found["head"] = (_matrix(spec, HEAD, (spec.vocab, spec.hidden)),)
    for layer in range(spec.layers):
        found |= _layer_parameters(spec, layer)
    return found


def _layer_parameters(spec: ModelSpec, layer: int) -> Parameters:
    source, query, kv = f"model.layers.{layer}", spec.query_size, spec.kv_size
    found: Parameters = {}

    def linear(target: str, width: int, bias: bool, **rows: int) -> None:
        parts = [(f"{source}.{name.replace('__', '.')}", size) for name, size in rows.items()]
        found[f"{layer}.{target}.weight"] = tuple(_matrix(spec, name + WEIGHT, (size, width)) for name, size in parts)
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


def _embedding(spec: ModelSpec) -> Part:
    """Quantized where the checkpoint says so of it as well, not only of products."""
    shape = (spec.vocab, spec.hidden)
    quantized = spec.quantization is not None and spec.quantization.embedding
    return _matrix(spec, EMBEDDING, shape) if quantized else Part(EMBEDDING, shape)


def _matrix(spec: ModelSpec, name: str, shape: Shape) -> Part:
    """The weight of a product, as the checkpoint stores it."""
    scheme = None if spec.quantization is None else spec.quantization.scheme_of(name.removesuffix(WEIGHT))
    return Part(name, shape, scheme)


def count_weights(parameters: Parameters) -> int:
    """How many numbers all parameters hold."""
    return sum(math.prod(part.wanted) for parts in parameters.values() for part in parts)


def check_tensors(spec: ModelSpec, parameters: Parameters, shapes: Mapping[str, Shape]) -> None:
    """Raise CheckpointInvalid, naming the tensor, unless `shapes` is exactly what the spec needs."""
    expected = {name: tensor for part in _all(parameters) for name, tensor in part.tensors.items()}
    for name, tensor in expected.items():
        if name not in shapes:
            if tensor.needed:
                raise CheckpointInvalid(f"tensor {name} is missing from the checkpoint")
        elif tuple(shapes[name]) not in tensor.shapes:
            wanted = " or ".join(str(list(shape)) for shape in tensor.shapes)
            raise CheckpointInvalid(f"tensor {name} has the shape {list(shapes[name])}; the config says {wanted}")
    beside = spare_biases(parameters, shapes).union(all_names(names_in(shapes, spec.layers)) if spec.kv_scales else ())
    for name in shapes:
        if name not in expected and name not in beside and not _harmless(name, spec):
            raise CheckpointInvalid(f"tensor {name} is in the checkpoint, but its config has no place for it")


def spare_biases(parameters: Parameters, shapes: Mapping[str, Shape]) -> set[str]:
    """Biases that the model does not have, beside quantized weights: some tools write zeros there.

    That they are zeros is seen when they are read.
    """
    known = {part.name for part in _all(parameters)}
    biases = {f"{part.module}.bias": part.shape[:1] for part in _all(parameters) if part.scheme is not None}
    return {name for name, shape in biases.items() if name not in known and tuple(shapes.get(name, ())) == shape}


def _all(parameters: Parameters) -> list[Part]:
    return [part for parts in parameters.values() for part in parts]


def _harmless(name: str, spec: ModelSpec) -> bool:
    """A tied head that is stored nevertheless, or a table that the config implies."""
    return (spec.tied and name == HEAD) or name.endswith(COMPUTED_SUFFIXES)
