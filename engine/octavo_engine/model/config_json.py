"""A Hugging Face `config.json` (and `generation_config.json`) as a ModelSpec. Nothing is executed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from octavo_engine.errors import CheckpointInvalid, ModelNotFound, ModelUnsupported
from octavo_engine.model.architecture import (
    MAX_LAYERS,
    Family,
    LinearScaling,
    Llama3Scaling,
    ModelSpec,
    RopeSpec,
    family_of,
)

MAX_CONFIG_BYTES = 4 * 1024 * 1024
DTYPES = ("float32", "bfloat16", "float16")


class Fields:
    """A JSON object whose values are checked as they are taken; every complaint names file and field."""

    def __init__(self, values: dict[str, Any], name: str) -> None:
        self.values, self.name = values, name

    def has(self, key: str) -> bool:
        """True when the field is there and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, value, "must be a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.wrong(key, value, "must be a finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "must be true or false")
        return value

    def section(self, key: str) -> Fields:
        """A nested object; empty when absent."""
        value = self.values.get(key) or {}
        if not isinstance(value, dict):
            raise self.wrong(key, value, "must be an object")
        return Fields(value, f"{self.name}: {key}")

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; empty when absent."""
        value = self.values.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in ids):
            raise self.wrong(key, value, "must be token ids")
        return tuple(ids)

    def wrong(self, key: str, value: object, rule: str) -> CheckpointInvalid:
        """The error for a field that breaks `rule`."""
        return CheckpointInvalid(f"{self.name}: {key} is {str(value)[:80]}; it {rule}")

    def _take(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None and default is None:
            raise CheckpointInvalid(f"{self.name}: {key} is missing")
        return default if value is None else value


def read_json(path: Path) -> Fields:
    """Read a JSON object; raises CheckpointInvalid naming the file."""
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise CheckpointInvalid(f"{path.name} is larger than {MAX_CONFIG_BYTES} bytes")
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelNotFound(f"{path.name} is missing") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointInvalid(f"{path.name} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise CheckpointInvalid(f"{path.name} must hold a JSON object")
    return Fields(values, path.name)


def spec_from_config(directory: Path) -> ModelSpec:
    """The ModelSpec of a checkpoint directory; raises ModelUnsupported or CheckpointInvalid naming the field."""
    config = read_json(directory / "config.json")
    family = family_of(_architecture(config))
    _refuse_quantization(config)
    heads, layers = config.integer("num_attention_heads"), config.integer("num_hidden_layers")
    if not 0 < layers <= MAX_LAYERS:
        raise config.wrong("num_hidden_layers", layers, f"must be 1 to {MAX_LAYERS}")
    bias = config.flag("attention_bias", False)
    return ModelSpec(
        architecture=family.name,
        hidden=config.integer("hidden_size"),
        layers=layers,
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", heads),
        head_dim=config.integer("head_dim", config.integer("hidden_size") // max(heads, 1)),
        intermediate=config.integer("intermediate_size"),
        vocab=config.integer("vocab_size"),
        eps=config.number("rms_norm_eps", 1e-6),
        rope=_rope(config),
        tied=config.flag("tie_word_embeddings", False),
        qkv_bias=bias or family.qkv_bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        qk_norm=family.qk_norm,
        windows=_windows(config, family, layers),
        max_positions=config.integer("max_position_embeddings"),
        eos_ids=_eos_ids(directory, config),
        dtype=_dtype(config),
    )


def _architecture(config: Fields) -> object:
    names = config.values.get("architectures")
    return names[0] if isinstance(names, list) and names else None


def _refuse_quantization(config: Fields) -> None:
    if config.has("quantization_config"):
        method = config.section("quantization_config").values.get("quant_method")
        raise ModelUnsupported(
            f"the checkpoint is quantized ({method}); supported are unquantized safetensors and GGUF files"
        )
    if config.values.get("hidden_act", "silu") != "silu":
        raise ModelUnsupported(f"hidden_act {config.values['hidden_act']!r} is not supported; supported is silu")


def _rope(config: Fields) -> RopeSpec:
    """Both spellings: `rope_parameters`, and the older `rope_theta` with `rope_scaling`."""
    parameters = config.section("rope_parameters" if config.has("rope_parameters") else "rope_scaling")
    theta = parameters.number("rope_theta", config.number("rope_theta", 10000.0))
    partial = parameters.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise ModelUnsupported(f"partial_rotary_factor {partial} is not supported; supported is 1")
    kind = parameters.values.get("rope_type", parameters.values.get("type", "default"))
    match kind:
        case "default":
            return RopeSpec(theta)
        case "linear":
            return RopeSpec(theta, LinearScaling(_positive(parameters, "factor")))
        case "llama3":
            return RopeSpec(theta, _llama3(parameters))
    raise ModelUnsupported(f"rope scaling {kind!r} is not supported; supported are default, linear, llama3")


def _llama3(parameters: Fields) -> Llama3Scaling:
    low, high = _positive(parameters, "low_freq_factor"), _positive(parameters, "high_freq_factor")
    if high <= low:
        raise parameters.wrong("high_freq_factor", high, "must be above low_freq_factor")
    original = parameters.integer("original_max_position_embeddings")
    return Llama3Scaling(_positive(parameters, "factor"), low, high, original)


def _positive(fields: Fields, key: str) -> float:
    value = fields.number(key)
    if value <= 0:
        raise fields.wrong(key, value, "must be positive")
    return value


def _windows(config: Fields, family: Family, layers: int) -> tuple[int | None, ...]:
    """The window of each layer. Mistral's holds everywhere; Qwen's only if switched on, above `max_window_layers`."""
    window = config.integer("sliding_window") if config.has("sliding_window") else None
    if family.name.startswith("Qwen") and not config.flag("use_sliding_window", False):
        window = None
    if family.name.startswith("Llama"):
        window = None
    kinds = config.values.get("layer_types")
    if window is None:
        return (None,) * layers
    if isinstance(kinds, list):
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    first = config.integer("max_window_layers", 0) if family.name.startswith("Qwen") else 0
    return tuple(window if layer >= first else None for layer in range(layers))


def _eos_ids(directory: Path, config: Fields) -> tuple[int, ...]:
    """`generation_config.json` knows more end tokens than the config; it wins where it is there."""
    generation = directory / "generation_config.json"
    ids = read_json(generation).token_ids("eos_token_id") if generation.is_file() else ()
    return ids or config.token_ids("eos_token_id")


def _dtype(config: Fields) -> str:
    name = config.values.get("dtype", config.values.get("torch_dtype")) or "float32"
    if name not in DTYPES:
        raise ModelUnsupported(f"weights of type {name!r} are not supported; supported are {', '.join(DTYPES)}")
    return str(name)
