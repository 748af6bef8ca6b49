"""A GGUF file's metadata as a ModelSpec."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.fields import Fields
from octavo_engine.model.gguf.file import GgufFile
from octavo_engine.model.gguf.rope import read_gguf_rope
from octavo_engine.model.values.architecture import MAX_DIMENSION, MAX_LAYERS, Family, ModelSpec, family_of
from octavo_engine.model.values.sampling_defaults import from_gguf

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
PLAIN_TYPES = {0: "float32", 1: "float16", 30: "bfloat16"}  # ggml's numbers; all others are quantized
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
ENDS = tuple(f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom"))
# Keys that change the numbers, and the values with which they do not.
HARMLESS: Mapping[str, tuple[float, ...]] = MappingProxyType(
    {
        "expert_count": (0,),
        "attention.causal": (True,),
        "attention.scale": (0.0,),
        "attn_logit_softcapping": (0.0,),
        "final_logit_softcapping": (0.0,),
        "logit_scale": (0.0, 1.0),
        "embedding_scale": (0.0, 1.0),
        "residual_scale": (0.0, 1.0),
    }
)


def spec_from_gguf(file: GgufFile) -> ModelSpec:
    """The ModelSpec of a GGUF file; raises ModelUnsupported or CheckpointInvalid naming the key."""
    fields = Fields(file.metadata, file.name)
    _refuse_parts(fields)
    prefix = fields.values.get("general.architecture")
    if not isinstance(prefix, str) or prefix not in ARCHITECTURES:
        raise ModelUnsupported(
            f"GGUF architecture {prefix!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    from octavo_engine.model.gguf.quantization import read_gguf_quantization  # noqa: PLC0415 (as slow as gguf itself)

    family = family_of(ARCHITECTURES[prefix])
    heads, layers = fields.integer(f"{prefix}.attention.head_count"), fields.size(f"{prefix}.block_count", MAX_LAYERS)
    hidden = fields.integer(f"{prefix}.embedding_length")
    head_dim = fields.size(f"{prefix}.attention.key_length", MAX_DIMENSION, hidden // max(heads, 1))
    _refuse_variants(fields, prefix, head_dim)
    context = fields.size(f"{prefix}.context_length", MAX_DIMENSION)
    rope, vocab = read_gguf_rope(file, fields, prefix, head_dim, context), _embedding_rows(file)
    return ModelSpec(
        architecture=family.name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=fields.integer(f"{prefix}.attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=fields.integer(f"{prefix}.feed_forward_length"),
        vocab=vocab,
        eps=fields.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
        rope=rope,
        tied=OUTPUT not in file.tensors,
        qkv_bias=_has_bias(file, family),
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=family.qk_norm,
        windows=_windows(fields, prefix, layers),
        max_positions=rope.positions(context),
        eos_ids=_end_ids(fields, vocab),
        dtype=PLAIN_TYPES.get(file.tensors["blk.0.attn_q.weight"].kind, "bfloat16")
        if "blk.0.attn_q.weight" in file.tensors
        else "bfloat16",
        quantization=read_gguf_quantization(file),
        sampling=from_gguf(fields),
    )


def _refuse_parts(fields: Fields) -> None:
    """The first part alone says what the model is, and no part has all tensors."""
    count = fields.integer("split.count", 1)
    if count > 1:
        raise ModelUnsupported(
            f"{fields.name} is one of {count} parts of a model; merge them into one file (llama-gguf-split --merge)"
        )


def _refuse_variants(fields: Fields, prefix: str, head_dim: int) -> None:
    for key, harmless in HARMLESS.items():
        value = fields.values.get(f"{prefix}.{key}", harmless[0])
        if value not in harmless:
            raise ModelUnsupported(f"{prefix}.{key} is {value}; supported is {harmless[0]}")
    if fields.integer(f"{prefix}.rope.dimension_count", head_dim) != head_dim:
        raise ModelUnsupported("rotation of a part of each head is not supported; supported is the whole head")
    if fields.integer(f"{prefix}.attention.value_length", head_dim) != head_dim:
        raise ModelUnsupported("value heads of another size than key heads are not supported")


def _embedding_rows(file: GgufFile) -> int:
    if EMBEDDING not in file.tensors:
        raise file.invalid(f"tensor {EMBEDDING} is missing")
    return file.tensors[EMBEDDING].shape[0]


def _end_ids(fields: Fields, vocab: int) -> tuple[int, ...]:
    """Ends of the text, of a turn, and of a message that waits for a tool."""
    found: dict[int, str] = {}
    for key in ENDS:
        found |= dict.fromkeys(fields.token_ids(key), key)
    for index, key in found.items():
        if index >= vocab:
            raise fields.wrong(key, index, f"must be below the rows of {EMBEDDING} ({vocab})")
    return tuple(found)


def _has_bias(file: GgufFile, family: Family) -> bool:
    return family.qkv_bias or "blk.0.attn_q.bias" in file.tensors


def _windows(fields: Fields, prefix: str, layers: int) -> tuple[int | None, ...]:
    window = fields.integer(f"{prefix}.attention.sliding_window", 0)
    return (window or None,) * layers
