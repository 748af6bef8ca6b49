"""The sizes of models that everyone can look up: what plans are computed for by hand."""

from __future__ import annotations

from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.model.values.rope_spec import RopeSpec


def spec(**sizes: object) -> ModelSpec:
    """A spec of these sizes; heads of 128, and no window, unless they say otherwise."""
    layers = sizes["layers"]
    assert isinstance(layers, int)
    defaults = {
        "architecture": "LlamaForCausalLM",
        "head_dim": 128,
        "eps": 1e-5,
        "rope": RopeSpec(10000.0),
        "tied": False,
        "windows": (None,) * layers,
        "eos_ids": (2,),
        "dtype": "bfloat16",
    }
    return ModelSpec(**(defaults | sizes))  # type: ignore[arg-type]


SMOLLM2_135M = spec(
    hidden=576,
    layers=30,
    heads=9,
    kv_heads=3,
    head_dim=64,
    intermediate=1536,
    vocab=49152,
    max_positions=8192,
    tied=True,
)
LLAMA_3_8B = spec(hidden=4096, layers=32, heads=32, kv_heads=8, intermediate=14336, vocab=128256, max_positions=8192)
QWEN25_7B = spec(
    architecture="Qwen2ForCausalLM",
    hidden=3584,
    layers=28,
    heads=28,
    kv_heads=4,
    intermediate=18944,
    vocab=152064,
    max_positions=32768,
    qkv_bias=True,
)
