"""The tensors of a GGUF file under Hugging Face's names, with the bytes they take. From the header alone; no torch."""

from __future__ import annotations

import math
import re

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.gguf.file import GgufFile, TensorInfo
from octavo_engine.model.gguf.rope import ROPE_FACTORS

KINDS = {
    kind.value: kind
    for kind in (
        GGMLQuantizationType.F32,
        GGMLQuantizationType.F16,
        GGMLQuantizationType.BF16,
        GGMLQuantizationType.Q4_0,
        GGMLQuantizationType.Q4_1,
        GGMLQuantizationType.Q5_0,
        GGMLQuantizationType.Q5_1,
        GGMLQuantizationType.Q8_0,
        GGMLQuantizationType.Q2_K,
        GGMLQuantizationType.Q3_K,
        GGMLQuantizationType.Q4_K,
        GGMLQuantizationType.Q5_K,
        GGMLQuantizationType.Q6_K,
    )
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def translate(name: str) -> str:
    """Hugging Face's name of a GGUF tensor; a name without a counterpart stays, and is reported as one too many."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{LAYER[part]}.{kind}" if part in LAYER else name
    stem, _, kind = name.rpartition(".")
    return f"{TOP[stem]}.{kind}" if stem in TOP else name


def tensors_of(file: GgufFile) -> dict[str, TensorInfo]:
    """Every tensor that is a weight, by Hugging Face's name."""
    return {translate(name): info for name, info in file.tensors.items() if name != ROPE_FACTORS}


def stored_bytes(file: GgufFile, info: TensorInfo) -> int:
    """Bytes in the file; checks the type, the row length and that the data lies within the file."""
    if info.kind not in KINDS:
        supported = ", ".join(kind.name for kind in KINDS.values())
        raise ModelUnsupported(f"tensor {info.name} has ggml type {info.kind}; supported are {supported}")
    elements, size = block_size(KINDS[info.kind])
    if info.shape[-1] % elements:
        raise file.invalid(f"tensor {info.name} has rows of {info.shape[-1]}, not a multiple of {elements}")
    total = math.prod(info.shape) // elements * size
    if info.offset + total > len(file.data):
        raise file.invalid(f"tensor {info.name} is truncated: it ends past the end of the file")
    return total


def block_size(kind: GGMLQuantizationType) -> tuple[int, int]:
    """Weights and bytes of one block."""
    elements, size = GGML_QUANT_SIZES[kind]
    return int(elements), int(size)
