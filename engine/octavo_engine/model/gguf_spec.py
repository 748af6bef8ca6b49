"""A GGUF file's metadata as a ModelSpec."""

from __future__ import annotations

import math
import struct
from typing import Any

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.architecture import (
    MAX_LAYERS,
    FactorScaling,
    Family,
    LinearScaling,
    ModelSpec,
    RopeSpec,
    family_of,
)
from octavo_engine.model.config_json import Fields
from octavo_engine.model.gguf_file import GgufFile

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
PLAIN_TYPES = {0: "float32", 1: "float16", 30: "bfloat16"}  # ggml's numbers; all others are quantized
EMBEDDING, OUTPUT, ROPE_FACTORS = "token_embd.weight", "output.weight", "rope_freqs.weight"


def spec_from_gguf(file: GgufFile) -> ModelSpec:
    """The ModelSpec of a GGUF file; raises ModelUnsupported or CheckpointInvalid naming the key."""
    fields = Fields(file.metadata, file.name)
    prefix = fields.values.get("general.architecture")
    if prefix not in ARCHITECTURES:
        raise ModelUnsupported(
            f"GGUF architecture {prefix!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    family = family_of(ARCHITECTURES[str(prefix)])
    heads, layers = fields.integer(f"{prefix}.attention.head_count"), fields.integer(f"{prefix}.block_count")
    if not 0 < layers <= MAX_LAYERS:
        raise fields.wrong(f"{prefix}.block_count", layers, f"must be 1 to {MAX_LAYERS}")
    hidden = fields.integer(f"{prefix}.embedding_length")
    head_dim = fields.integer(f"{prefix}.attention.key_length", hidden // max(heads, 1))
    _refuse_variants(fields, str(prefix), head_dim)
    return ModelSpec(
        architecture=family.name,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=fields.integer(f"{prefix}.attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate=fields.integer(f"{prefix}.feed_forward_length"),
        vocab=_embedding_rows(file),
        eps=fields.number(f"{prefix}.attention.layer_norm_rms_epsilon"),
        rope=RopeSpec(
            fields.number(f"{prefix}.rope.freq_base", 10000.0), _scaling(file, fields, str(prefix), head_dim)
        ),
        tied=OUTPUT not in file.tensors,
        qkv_bias=_has_bias(file, family),
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=family.qk_norm,
        windows=_windows(fields, str(prefix), layers),
        max_positions=fields.integer(f"{prefix}.context_length"),
        eos_ids=tuple(
            dict.fromkeys(
                fields.token_ids("tokenizer.ggml.eos_token_id") + fields.token_ids("tokenizer.ggml.eot_token_id")
            )
        ),
        dtype=PLAIN_TYPES.get(file.tensors["blk.0.attn_q.weight"].kind, "bfloat16")
        if "blk.0.attn_q.weight" in file.tensors
        else "bfloat16",
    )


def _refuse_variants(fields: Fields, prefix: str, head_dim: int) -> None:
    if fields.integer(f"{prefix}.expert_count", 0):
        raise ModelUnsupported("mixtures of experts are not supported; supported are dense models")
    if fields.integer(f"{prefix}.rope.dimension_count", head_dim) != head_dim:
        raise ModelUnsupported("rotation of a part of each head is not supported; supported is the whole head")
    if fields.integer(f"{prefix}.attention.value_length", head_dim) != head_dim:
        raise ModelUnsupported("value heads of another size than key heads are not supported")


def _embedding_rows(file: GgufFile) -> int:
    if EMBEDDING not in file.tensors:
        raise file.invalid(f"tensor {EMBEDDING} is missing")
    return file.tensors[EMBEDDING].shape[0]


def _has_bias(file: GgufFile, family: Family) -> bool:
    return family.qkv_bias or "blk.0.attn_q.bias" in file.tensors


def _windows(fields: Fields, prefix: str, layers: int) -> tuple[int | None, ...]:
    window = fields.integer(f"{prefix}.attention.sliding_window", 0)
    return (window or None,) * layers


def _scaling(file: GgufFile, fields: Fields, prefix: str, head_dim: int) -> LinearScaling | FactorScaling | None:
    if ROPE_FACTORS in file.tensors:
        return FactorScaling(tuple(_read_factors(file, head_dim)))
    kind: Any = fields.values.get(f"{prefix}.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return LinearScaling(fields.number(f"{prefix}.rope.scaling.factor"))
    raise ModelUnsupported(f"rope scaling {kind!r} is not supported; supported are none, linear, and {ROPE_FACTORS}")


def _read_factors(file: GgufFile, head_dim: int) -> list[float]:
    info = file.tensors[ROPE_FACTORS]
    size = 4 * (head_dim // 2)
    data = file.data[info.offset : info.offset + size]
    if info.kind != 0 or info.shape != (head_dim // 2,) or len(data) != size:
        raise file.invalid(f"tensor {ROPE_FACTORS} must hold {head_dim // 2} float32 values")
    factors = struct.unpack(f"<{head_dim // 2}f", data)
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise file.invalid(f"tensor {ROPE_FACTORS} must hold positive values")
    return list(factors)
