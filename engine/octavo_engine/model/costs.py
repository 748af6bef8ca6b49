"""What a spec costs: bytes in memory, and bytes and operations of each step. From sizes alone; nothing is loaded."""

from __future__ import annotations

from collections import Counter

from octavo_engine.config import EngineConfig
from octavo_engine.memory import CacheGeometry, Needs
from octavo_engine.model.architecture import ModelSpec
from octavo_engine.model.parameters import count_weights, parameters_of
from octavo_engine.roofline import ModelCost

BYTES_PER_VALUE = {"float32": 4, "bfloat16": 2, "float16": 2}
ENDS = ("embedding", "head", "final_norm")
# AWQ and GPTQ as they are usually made: 4 bits a weight, and for each 128 a 16-bit scale and a 4-bit zero point.
BITS_OF_FOUR = 4 + (16 + 4) / 128


def width_of(spec: ModelSpec, dtype: str) -> int:
    """Bytes of one weight and of one cached value, with `--dtype`."""
    return BYTES_PER_VALUE[spec.dtype if dtype == "auto" else dtype]


def product_weights(spec: ModelSpec) -> int:
    """Weights of all layers' products: what a token is multiplied with, and what quantization makes smaller."""
    attention = spec.hidden * (spec.query_size + 2 * spec.kv_size) + spec.query_size * spec.hidden
    return spec.layers * (attention + 3 * spec.hidden * spec.intermediate)


def weight_bytes(spec: ModelSpec, width: int, *, tied_twice: bool = False) -> int:
    """Bytes of all weights as they lie in memory.

    `tied_twice`: where the head's packed form cannot be looked up in, a tied embedding is there a second time, plain.
    """
    twice = spec.vocab * spec.hidden if spec.tied and tied_twice else 0
    return width * (count_weights(parameters_of(spec)) + twice)


def bytes_spared_by_four_bits(spec: ModelSpec, width: int) -> int:
    """Bytes that 4-bit weights would leave free; embedding, head and norms stay as they are."""
    return int(product_weights(spec) * (width - BITS_OF_FOUR / 8))


def activation_bytes(spec: ModelSpec, config: EngineConfig, width: int) -> int:
    """An upper bound of what one step needs beside weights and cache: a few widest rows a token, and the logits."""
    row = 4 * spec.hidden + 3 * spec.intermediate + 2 * (spec.query_size + 2 * spec.kv_size)
    return config.max_num_batched_tokens * row * width + 3 * config.max_num_seqs * spec.vocab * 4


def needs_of(spec: ModelSpec, config: EngineConfig, *, width: int, tied_twice: bool = False) -> Needs:
    """What serving the model asks of a memory; raises InvalidConfiguration where the lengths do not agree."""
    return Needs(
        geometry=CacheGeometry(spec.layers, spec.kv_heads, spec.head_dim, width, config.block_size),
        weights=weight_bytes(spec, width, tied_twice=tied_twice),
        activations=activation_bytes(spec, config, width),
        max_model_len=config.length_for(spec.max_positions, spec.longest),
        max_num_seqs=config.max_num_seqs,
    )


def cost_of(spec: ModelSpec, width: int, *, four_bits: bool = False) -> ModelCost:
    """What the model's steps move and compute, with weights and cache of `width` bytes, or 4-bit weights."""
    inner = {name: parts for name, parts in parameters_of(spec).items() if name not in ENDS}
    spared = bytes_spared_by_four_bits(spec, width) if four_bits else 0
    head = spec.vocab * spec.hidden
    return ModelCost(
        step_bytes=width * (count_weights(inner) + spec.hidden) - spared,
        head_bytes=width * head,
        row_bytes=width * spec.hidden,
        token_flops=2 * product_weights(spec),
        head_flops=2 * head,
        layer_kv_bytes=2 * spec.kv_size * width,
        pair_flops=4 * spec.query_size,
        windows=tuple(Counter(spec.windows).items()),
    )
