"""What a spec costs: bytes in memory, and bytes and operations of each step. From sizes alone; nothing is loaded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from octavo_engine.batch import SCORED_ROWS
from octavo_engine.config import EngineConfig
from octavo_engine.memory import CacheGeometry, Needs
from octavo_engine.model.tensors import packed_tensors
from octavo_engine.model.tensors.graph_costs import graph_bytes, step_row
from octavo_engine.model.tensors.parameters import Part, parameters_of
from octavo_engine.model.tensors.sharding import shards_of
from octavo_engine.model.values.architecture import ModelSpec
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
    """Bytes of all weights as they lie in memory; `width` is that of the plain ones.

    `tied_twice`: where the head's packed form cannot be looked up in, a tied embedding is there a second time, plain.
    """
    twice = spec.vocab * spec.hidden if spec.tied and tied_twice else 0
    parts = (part for parts in parameters_of(spec).values() for part in parts)
    return sum(_resident(part, width) for part in parts) + width * twice


def bytes_spared_by_four_bits(spec: ModelSpec, width: int) -> int:
    """Bytes that 4-bit weights would leave free, where they have more; embedding, head and norms stay as they are."""
    more = [part for part in _products(spec) if part.scheme is None or part.scheme.bits > 4]
    return max(0, _least(more, width) - int(sum(math.prod(part.shape) for part in more) * BITS_OF_FOUR / 8))


def _products(spec: ModelSpec) -> list[Part]:
    """The matrices of all layers."""
    inner = (parts for name, parts in parameters_of(spec).items() if name not in ENDS)
    return [part for parts in inner for part in parts if len(part.shape) == 2]


def _resident(part: Part, width: int) -> int:
    """Bytes in memory."""
    if part.scheme is None:
        return width * math.prod(part.shape)
    return packed_tensors.resident_bytes((part.shape[0], part.shape[1]), part.scheme)


def _least(parts: Iterable[Part], width: int) -> int:
    """Bytes that a step which uses these reads at least."""
    return sum(
        width * math.prod(part.shape)
        if part.scheme is None
        else packed_tensors.least_bytes((part.shape[0], part.shape[1]), part.scheme)
        for part in parts
    )


def activation_bytes(spec: ModelSpec, config: EngineConfig, width: int) -> int:
    """An upper bound of what one step needs beside weights and cache: a few widest rows a token, and the logits of what
    is sampled, or of a piece of a prompt whose log-probabilities are asked for."""
    rows = config.max_num_batched_tokens * step_row(spec)
    return rows * width + 3 * max(config.max_num_seqs, SCORED_ROWS) * spec.vocab * 4


def cached_width(config: EngineConfig, width: int) -> int:
    """Bytes of one cached number, where `width` is that of one weight."""
    return 1 if config.kv_cache_dtype == "fp8" else width


def geometry_of(part: ModelSpec, config: EngineConfig, width: int) -> CacheGeometry:
    """The shape of one rank's keys and values; `width` is that of plain weights."""
    cached = cached_width(config, width)
    return CacheGeometry(part.layers, part.kv_heads, part.head_dim, cached, config.block_size)


def needs_of(
    spec: ModelSpec, config: EngineConfig, *, width: int, tied_twice: bool = False, on_host: bool = False
) -> Needs:
    """What serving the model asks of a memory; raises InvalidConfiguration where lengths or ranks do not suit it.

    Ranks have a device each, of which the fullest counts; on a host all are in one memory.
    """
    parts = [shard.spec for shard in shards_of(spec, config.tensor_parallel_size)]
    length = config.length_for(spec.max_positions, spec.longest)
    sizes = () if on_host else config.graph_sizes

    def together(needed: Callable[[ModelSpec], int]) -> int:
        return sum(map(needed, parts)) if on_host else max(map(needed, parts))

    def graphs(part: ModelSpec) -> int:
        return graph_bytes(part, geometry_of(part, config, width), sizes, width=width, max_model_len=length)

    return Needs(
        geometry=replace(geometry_of(spec, config, width), kv_heads=together(lambda part: part.kv_heads)),
        weights=together(lambda part: weight_bytes(part, width, tied_twice=tied_twice)),
        activations=together(lambda part: activation_bytes(replace(part, vocab=spec.vocab), config, width)),
        graphs=together(graphs),
        max_model_len=length,
        max_num_seqs=config.max_num_seqs,
    )


def cost_of(spec: ModelSpec, width: int, *, cached: int | None = None, four_bits: bool = False) -> ModelCost:
    """What the model's steps move and compute, with plain weights of `width` bytes.

    `cached`: bytes of one number in the cache, if they are others; `four_bits`: with all layers' products in 4 bits,
    whatever they are.
    """
    parameters = parameters_of(spec)
    inner = [part for name, parts in parameters.items() if name not in ENDS for part in parts]
    spared = bytes_spared_by_four_bits(spec, width) if four_bits else 0
    head = spec.vocab * spec.hidden
    return ModelCost(
        step_bytes=_least(inner, width) + width * spec.hidden - spared,
        head_bytes=_least(parameters.get("head", parameters["embedding"]), width),
        row_bytes=width * spec.hidden,
        token_flops=2 * product_weights(spec),
        end_flops=2 * spec.hidden * (spec.query_size + 3 * spec.intermediate),
        head_flops=2 * head,
        layer_kv_bytes=2 * spec.kv_size * (cached or width),
        pair_flops=4 * spec.query_size,
        windows=tuple(Counter(spec.windows).items()),
    )
