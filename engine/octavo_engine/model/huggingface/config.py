"""A Hugging Face `config.json` (and `generation_config.json`) as a ModelSpec. Nothing is executed."""

from __future__ import annotations

from pathlib import Path

from octavo_engine.errors import ModelUnsupported
from octavo_engine.model.fields import Fields, read_json
from octavo_engine.model.huggingface.quantization_config import has_kv_scales, read_quantization
from octavo_engine.model.huggingface.rope_config import read_rope
from octavo_engine.model.values.architecture import MAX_DIMENSION, MAX_LAYERS, Family, ModelSpec, WindowRule, family_of
from octavo_engine.model.values.sampling_defaults import from_generation_config

DTYPES = ("float32", "bfloat16", "float16")
ACTIVATIONS = ("silu", "swish")  # two names of one function
QUANTIZATION = "quantization_config"
GENERATION = "generation_config.json"
END = "eos_token_id"
FULL, SLIDING = "full_attention", "sliding_attention"
# What transformers assumes of a field that is left out; null is an answer.
WINDOW, MAX_WINDOW_LAYERS = 4096, 28


def spec_from_config(directory: Path) -> ModelSpec:
    """The ModelSpec of a checkpoint directory; raises ModelUnsupported or CheckpointInvalid naming the field."""
    config = read_json(directory / "config.json")
    family = family_of(_architecture(config))
    _refuse_activation(config)
    generation = _generation(directory)
    heads, layers = config.integer("num_attention_heads"), config.size("num_hidden_layers", MAX_LAYERS)
    positions = config.size("max_position_embeddings", MAX_DIMENSION)
    head_dim = _head_dim(config, family, heads)
    rope = read_rope(config, head_dim, positions)
    bias = family.reads_attention_bias and config.flag("attention_bias", False)
    return ModelSpec(
        architecture=family.name,
        hidden=config.integer("hidden_size"),
        layers=layers,
        heads=heads,
        kv_heads=_kv_heads(config, family, heads),
        head_dim=head_dim,
        intermediate=config.integer("intermediate_size"),
        vocab=config.integer("vocab_size"),
        eps=config.number("rms_norm_eps", 1e-6),
        rope=rope,
        tied=config.flag("tie_word_embeddings", False),
        qkv_bias=bias or family.qkv_bias,
        output_bias=bias,
        mlp_bias=family.reads_mlp_bias and config.flag("mlp_bias", False),
        qk_norm=family.qk_norm,
        windows=_windows(config, family.window_rule, layers),
        max_positions=rope.positions(positions),
        eos_ids=_end_ids(config, generation),
        dtype=_dtype(config),
        quantization=read_quantization(config.section(QUANTIZATION)) if config.has(QUANTIZATION) else None,
        kv_scales=has_kv_scales(config.section(QUANTIZATION)),
        sampling=from_generation_config(generation),
    )


def _architecture(config: Fields) -> object:
    names = config.values.get("architectures")
    return names[0] if isinstance(names, list) and names else None


def _refuse_activation(config: Fields) -> None:
    name = config.values.get("hidden_act", "silu")
    if name not in ACTIVATIONS:
        raise ModelUnsupported(f"hidden_act {name!r} is not supported; supported is silu")


def _generation(directory: Path) -> Fields:
    """`generation_config.json`, whose end tokens win over the config's; empty where there is none."""
    file = directory / GENERATION
    return read_json(file) if file.is_file() else Fields({}, GENERATION)


def _end_ids(config: Fields, generation: Fields) -> tuple[int, ...]:
    """The tokens that end a generation. One that the model has no logit for means that they belong to another."""
    source = generation if generation.token_ids(END) else config
    ids, vocab = source.token_ids(END), config.integer("vocab_size")
    if any(index >= vocab for index in ids):
        raise source.wrong(END, list(ids), f"must be below the vocab_size of config.json ({vocab})")
    return ids


def _kv_heads(config: Fields, family: Family, heads: int) -> int:
    left_out = "num_key_value_heads" not in config.values
    return config.integer("num_key_value_heads", (family.kv_heads if left_out else None) or heads)


def _head_dim(config: Fields, family: Family, heads: int) -> int:
    if config.has("head_dim"):
        return config.integer("head_dim")
    hidden = config.integer("hidden_size")
    if family.head_dim is None and hidden % max(heads, 1):
        raise config.wrong("hidden_size", hidden, f"must be num_attention_heads ({heads}) times the head_dim left out")
    return family.head_dim or hidden // max(heads, 1)


def _windows(config: Fields, rule: WindowRule, layers: int) -> tuple[int | None, ...]:
    """The window of each layer, in tokens. Where `layer_types` names the layers, they are those."""
    if rule is WindowRule.NONE:
        return (None,) * layers
    window = _window(config, rule)
    if config.has("layer_types"):
        return _named_windows(config, window, layers)
    first = config.integer("max_window_layers", MAX_WINDOW_LAYERS) if rule is WindowRule.SWITCHED else 0
    return tuple(window if layer >= first else None for layer in range(layers))


def _window(config: Fields, rule: WindowRule) -> int | None:
    """The size of the windows that there are. Null is none; a field that is left out is not."""
    off = rule is WindowRule.SWITCHED and not config.flag("use_sliding_window", False)
    if off or ("sliding_window" in config.values and not config.has("sliding_window")):
        return None
    return config.integer("sliding_window", WINDOW)


def _named_windows(config: Fields, window: int | None, layers: int) -> tuple[int | None, ...]:
    kinds = config.words("layer_types")
    if len(kinds) != layers:
        raise config.wrong("layer_types", kinds, f"must name {layers} layers")
    for kind in kinds:
        if kind not in (FULL, SLIDING):
            raise ModelUnsupported(f"layer_types: {kind!r} is not supported; supported are {FULL}, {SLIDING}")
    if SLIDING in kinds and window is None:
        raise config.wrong("layer_types", kinds, "names sliding layers, but the config has no window switched on")
    return tuple(window if kind == SLIDING else None for kind in kinds)


def _dtype(config: Fields) -> str:
    name = str(config.values.get("dtype") or config.values.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in DTYPES:
        raise ModelUnsupported(f"weights of type {name!r} are not supported; supported are {', '.join(DTYPES)}")
    return name
