"""Tensors of a GGUF file under Hugging Face's names, dequantized as they are read."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as library_dequantize
from torch import Tensor

from octavo_engine.errors import ModelUnsupported
from octavo_engine.kernels import dequant
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
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SLICE_WEIGHTS = 1 << 17
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
        elements, size = block_size(KINDS[info.kind])
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

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """The tensor in `dtype`, dequantized in float32, in Hugging Face's row order."""
        info = self._tensors[name]
        raw = torch.frombuffer(self._file.data, dtype=torch.uint8, count=self._sizes[name], offset=info.offset)
        tensor = decode(raw, KINDS[info.kind], dtype).view(info.shape)
        if family_of(self._spec.architecture).gguf_permuted:
            heads = {".q_proj.": self._spec.heads, ".k_proj.": self._spec.kv_heads}
            tensor = next((unpermute(tensor, count) for part, count in heads.items() if part in name), tensor)
        return tensor


def decode(raw: Tensor, kind: GGMLQuantizationType, dtype: torch.dtype) -> Tensor:
    """Stored bytes, uint8 `[bytes]`, as `dtype` `[weights]`; in slices whose float32 values stay in cache."""
    if kind.name in PLAIN:
        return raw.view(PLAIN[kind.name]).to(dtype)
    elements, size = block_size(kind)
    blocks = raw.view(-1, size)
    weights = torch.empty(len(blocks), elements, dtype=dtype)
    step = SLICE_WEIGHTS // elements
    for start in range(0, len(blocks), step):
        weights[start : start + step] = _dequantize(blocks[start : start + step], kind)
    return weights.flatten()


def block_size(kind: GGMLQuantizationType) -> tuple[int, int]:
    """Weights and bytes of one block."""
    elements, size = GGML_QUANT_SIZES[kind]
    return int(elements), int(size)


def _dequantize(blocks: Tensor, kind: GGMLQuantizationType) -> Tensor:
    fast = dequant.BY_NAME.get(kind.name)
    return fast(blocks) if fast else torch.from_numpy(library_dequantize(blocks.numpy(), kind))


def unpermute(tensor: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's row order in each head: it pairs neighbours (2i, 2i+1), we pair halves (i, i + dim/2)."""
    return tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).flatten(0, 2)
