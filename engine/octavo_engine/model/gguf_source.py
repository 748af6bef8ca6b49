"""Tensors of a GGUF file under Hugging Face's names, dequantized as they are read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.architecture import ModelSpec, family_of
from octavo_engine.model.gguf_file import GgufFile, TensorInfo
from octavo_engine.model.gguf_spec import ROPE_FACTORS

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


class GgufSource:
    """A TensorSource over one GGUF file."""

    def __init__(self, file: GgufFile, spec: ModelSpec) -> None:
        self._file, self._spec = file, spec
        self._tensors = {translate(name): info for name, info in file.tensors.items() if name != ROPE_FACTORS}
        self._sizes = {name: self._stored_bytes(info) for name, info in self._tensors.items()}

    def _stored_bytes(self, info: TensorInfo) -> int:
        """Bytes in the file; checks the type, the row length and that the data lies within the file."""
        if info.kind not in KINDS:
            supported = ", ".join(kind.name for kind in KINDS.values())
            raise ModelUnsupported(f"tensor {info.name} has ggml type {info.kind}; supported are {supported}")
        elements, size = GGML_QUANT_SIZES[KINDS[info.kind]]
        if info.shape[-1] % elements:
            raise self._file.invalid(f"tensor {info.name} has rows of {info.shape[-1]}, not a multiple of {elements}")
        total = math.prod(info.shape) // elements * size
        if info.offset + total > len(self._file.data):
            raise self._file.invalid(f"tensor {info.name} is truncated: it ends past the end of the file")
        return total

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {name: info.shape for name, info in self._tensors.items()}

    @property
    def sizes(self) -> Mapping[str, int]:
        """The stored bytes of every tensor."""
        return self._sizes

    def read(self, name: str) -> Tensor:
        """The tensor, dequantized to float32 (bfloat16 and float16 stay), in Hugging Face's row order."""
        info = self._tensors[name]
        raw = np.frombuffer(self._file.data, np.uint8, self._sizes[name], info.offset)
        tensor = self._decode(raw, info).reshape(info.shape)
        if family_of(self._spec.architecture).gguf_permuted:
            heads = {"self_attn.q_proj": self._spec.heads, "self_attn.k_proj": self._spec.kv_heads}
            tensor = next((unpermute(tensor, count) for part, count in heads.items() if part in name), tensor)
        return tensor

    def _decode(self, raw: np.ndarray, info: TensorInfo) -> Tensor:
        match kind := KINDS[info.kind]:
            case GGMLQuantizationType.F32 | GGMLQuantizationType.F16 | GGMLQuantizationType.BF16:
                plain = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind.name]
                return torch.frombuffer(bytearray(raw), dtype=plain)
            case _:
                return torch.from_numpy(dequantize(raw.reshape(-1, GGML_QUANT_SIZES[kind][1]), kind))


def unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's row order within each head, which pairs neighbours (2i, 2i+1) instead of halves (i, i + dim/2)."""
    return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
