"""A checkpoint's files without torch: small, valid, and of as many bytes as a test about transfers wants."""

from __future__ import annotations

import json
import random
import struct

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
}
SHAPES = {
    "model.embed_tokens.weight": [64, 16],
    "model.norm.weight": [16],
    "lm_head.weight": [64, 16],
    "model.layers.0.input_layernorm.weight": [16],
    "model.layers.0.post_attention_layernorm.weight": [16],
    "model.layers.0.self_attn.q_proj.weight": [16, 16],
    "model.layers.0.self_attn.k_proj.weight": [8, 16],
    "model.layers.0.self_attn.v_proj.weight": [8, 16],
    "model.layers.0.self_attn.o_proj.weight": [16, 16],
    "model.layers.0.mlp.gate_proj.weight": [32, 16],
    "model.layers.0.mlp.up_proj.weight": [32, 16],
    "model.layers.0.mlp.down_proj.weight": [16, 32],
}
INDEX = "model.safetensors.index.json"


def safetensors(shapes: dict[str, list[int]], seed: int = 0) -> bytes:
    """A file with these tensors in bfloat16."""
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2
        for dimension in shape:
            size *= dimension
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + random.Random(seed).randbytes(end)


def checkpoint(seed: int = 0, **changes: object) -> dict[str, bytes]:
    """A whole small checkpoint in one safetensors file, beside things that nobody should fetch."""
    config = {key: value for key, value in (CONFIG | changes).items() if value is not None}
    return {
        "config.json": json.dumps(config).encode(),
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b"{}",
        "model.safetensors": safetensors(SHAPES, seed),
        "pytorch_model.bin": b"a pickle",
        "modeling_tiny.py": b"import os",
        "README.md": b"# words",
    }


FETCHED = {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}


def sharded(seed: int = 0) -> dict[str, bytes]:
    """The same in two files with an index."""
    files = checkpoint(seed)
    del files["model.safetensors"]
    names = list(SHAPES)
    shards = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for number, (file, tensors) in enumerate(shards.items()):
        files[file] = safetensors({name: SHAPES[name] for name in tensors}, seed + number)
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    return files | {INDEX: json.dumps({"metadata": {}, "weight_map": weight_map}).encode()}


def large(size: int, seed: int = 0) -> dict[str, bytes]:
    """A checkpoint whose one weight file has about `size` bytes: to be moved, not to be run."""
    return checkpoint(seed) | {"model.safetensors": safetensors({"blob": [size // 2]}, seed)}


def gguf(pairs: int = 0) -> bytes:
    """An empty GGUF file with a long vocabulary-like array of `pairs` strings."""
    text = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 5) + b"words" + struct.pack("<IIQ", 9, 8, pairs)
    return text + b"".join(struct.pack("<Q", 4) + b"%04d" % (number % 10000) for number in range(pairs))
