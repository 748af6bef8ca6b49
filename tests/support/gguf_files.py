"""GGUF files whose matrices are stored in several types, and the model that such a file means.

Blocks that the gguf library can make are made of the model's weights; those of other types are random bits. Either way
the model gets what the library reads from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

# Where blocks hold float16 scales: (place, a size that makes weights of about 0.05).
SCALES: Mapping[str, tuple[tuple[int, float], ...]] = {
    "Q4_0": ((0, 0.01),),
    "Q4_1": ((0, 0.01), (2, 0.05)),
    "Q8_0": ((0, 0.0005),),
    "Q4_K": ((0, 0.0003), (2, 0.001)),
    "Q6_K": ((208, 0.00005),),
}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def random_blocks(kind: str, count: int, seed: int = 0) -> np.ndarray:
    """uint8 `[count, bytes]`: arbitrary bits, but finite scales of ordinary size."""
    source = np.random.default_rng(seed)
    blocks = source.integers(0, 256, (count, GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]), dtype=np.uint8)
    for place, size in SCALES[kind]:
        scales = source.normal(0, size, (count, 1)).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8)
    return blocks


def add_sizes(writer: gguf.GGUFWriter, config: Any) -> None:
    """What a header says of every model."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(config.eos_token_id)


def write_mixed(model: Any, path: Path, kinds: Mapping[str, str]) -> Path:
    """Write a transformers Llama, and change its weights to what is in the file.

    kinds: a part of a tensor's Hugging Face name, as a regular expression -> its type; the first that is found counts.
    """
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    add_sizes(writer, config)
    for number, (name, parameter) in enumerate(model.named_parameters()):  # a tied head is not among them
        kind = next((kind for part, kind in kinds.items() if re.search(part, name)), "F32")
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        permuted = next((count for part, count in heads.items() if part in name), None)
        stored = stored_blocks(parameter.detach().numpy(), kind, permuted, number)
        meant = gguf.quants.dequantize(stored, GGMLQuantizationType[kind]).reshape(parameter.shape)
        parameter.data = torch.from_numpy(meant if permuted is None else unpermuted(meant, permuted)).clone()
        writer.add_tensor(gguf_name(name), stored, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored_blocks(weight: np.ndarray, kind: str, heads: int | None, seed: int) -> np.ndarray:
    """A tensor as it is stored: `[rows, bytes of a row]`, or plain numbers."""
    if kind.endswith("_K"):
        elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        per_row = weight.shape[1] // elements
        return random_blocks(kind, len(weight) * per_row, seed).reshape(len(weight), per_row * size)
    rows = weight if heads is None else permuted(weight, heads)
    return gguf.quants.quantize(rows, GGMLQuantizationType[kind])


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """The row order of llama.cpp's converter: neighbours rotate together, where Hugging Face has halves of a head."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def unpermuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Back from there."""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def gguf_name(name: str) -> str:
    """llama.cpp's name of a Hugging Face tensor."""
    stem, _, kind = name.rpartition(".")
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.*)", stem):
        return f"blk.{match[1]}.{NAMES[match[2]]}.{kind}"
    return f"{NAMES[stem]}.{kind}"
