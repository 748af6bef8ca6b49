"""What a config.json means: every field that is read, in the spellings of all years, and every one that is refused."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo_engine.config import EngineConfig
from octavo_engine.errors import CheckpointInvalid, InvalidConfiguration, ModelUnsupported, StartupError
from octavo_engine.model.huggingface.config import spec_from_config
from octavo_engine.model.values.architecture import ModelSpec
from octavo_engine.model.values.rope_spec import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RopeSpec,
    YarnScaling,
    yarn_attention_factor,
)
from octavo_engine.model.values.sampling_defaults import SamplingDefaults

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"]}
QWEN2 = LLAMA | {"architectures": ["Qwen2ForCausalLM"]}
QWEN3 = LLAMA | {"architectures": ["Qwen3ForCausalLM"]}


def read(place: Path, config: dict[str, Any], generation: dict[str, Any] | None = None, **changes: Any) -> ModelSpec:
    """The spec of a directory with that config; `...` leaves a field out."""
    kept = {key: value for key, value in (config | changes).items() if value is not ...}
    (place / "config.json").write_text(json.dumps(kept))
    if generation is not None:
        (place / "generation_config.json").write_text(json.dumps(generation))
    return spec_from_config(place)


ROPES: dict[str, tuple[dict[str, Any], RopeSpec]] = {
    "none": ({}, RopeSpec(10000.0)),
    "theta at the top": ({"rope_theta": 5e5, "rope_scaling": None}, RopeSpec(5e5)),
    "theta within": ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, RopeSpec(1e6)),
    "type": ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeSpec(10000.0, LinearScaling(2.0))),
    "rope_type": ({"rope_scaling": {"rope_type": "linear", "factor": 2}}, RopeSpec(10000.0, LinearScaling(2.0))),
    "both types": (
        {"rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 2}},
        RopeSpec(10000.0, LinearScaling(2.0)),
    ),
    "both sections": (
        {
            "rope_scaling": {"type": "linear", "factor": 2},
            "rope_parameters": {"rope_type": "default"},
            "rope_theta": 7.0,
        },
        RopeSpec(7.0, LinearScaling(2.0)),
    ),
    "an empty older section": (
        {"rope_scaling": {}, "rope_parameters": {"rope_type": "linear", "factor": 3, "rope_theta": 9.0}},
        RopeSpec(9.0, LinearScaling(3.0)),
    ),
    "dynamic": (
        {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
        RopeSpec(10000.0, DynamicScaling(factor=4.0, original_max_positions=4096)),
    ),
    "llama3": (
        {
            "rope_theta": 5e5,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 1024,
            },
        },
        RopeSpec(5e5, Llama3Scaling(8.0, 1.0, 4.0, 1024)),
    ),
    "yarn": (
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}},
        RopeSpec(
            10000.0,
            YarnScaling(factor=4.0, original_max_positions=1024, attention_factor=yarn_attention_factor(4.0)),
        ),
    ),
    "yarn, original at the top": (
        {
            "original_max_position_embeddings": 512,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
        },
        RopeSpec(
            10000.0, YarnScaling(factor=4.0, original_max_positions=512, attention_factor=yarn_attention_factor(4.0))
        ),
    ),
    "yarn, factor from the lengths": (
        {"rope_scaling": {"type": "yarn", "factor": None, "original_max_position_embeddings": 2048}},
        RopeSpec(
            10000.0, YarnScaling(factor=2.0, original_max_positions=2048, attention_factor=yarn_attention_factor(2.0))
        ),
    ),
    "yarn, everything said": (
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e6,
                "factor": 4,
                "original_max_position_embeddings": 1024,
                "attention_factor": 0.75,
                "beta_fast": 16,
                "beta_slow": 2,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
                "truncate": False,
            }
        },
        RopeSpec(
            1e6,
            YarnScaling(
                factor=4.0,
                original_max_positions=1024,
                beta_fast=16.0,
                beta_slow=2.0,
                attention_factor=0.75,
                truncate=False,
            ),
        ),
    ),
}


@pytest.mark.parametrize("name", ROPES)
def test_rotations(name: str, tmp_path: Path) -> None:
    fields, rope = ROPES[name]
    assert read(tmp_path, LLAMA, **fields).rope == rope


def test_yarns_attention_factor_is_from_one_field_or_from_two() -> None:
    assert yarn_attention_factor(4.0) == pytest.approx(1.1386294)
    assert yarn_attention_factor(4.0, 1.0, 1.0) == 1.0
    assert yarn_attention_factor(4.0, 1.0, 0.0) == yarn_attention_factor(4.0)
    assert yarn_attention_factor(40.0, 0.707, 0.5) == pytest.approx(1.0644689)
    assert yarn_attention_factor(1.0, 0.7, 0.5) == 1.0


@pytest.mark.parametrize(
    ("fields", "positions", "longest"),
    [
        ({}, 4096, 4096),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 16384, 16384),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 16384, 16384),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}}, 4096, 4096),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}}, 4096, 4096),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, 4096, 16384),
        ({"rope_scaling": ROPES["llama3"][0]["rope_scaling"]}, 4096, 4096),
    ],
)
def test_how_many_positions_a_scaling_gives(
    fields: dict[str, Any], positions: int, longest: int, tmp_path: Path
) -> None:
    spec = read(tmp_path, LLAMA, **fields)
    assert (spec.max_positions, spec.longest) == (positions, longest)
    config = EngineConfig(model="m")
    assert config.length_for(spec.max_positions, spec.longest) == positions
    assert EngineConfig(model="m", max_model_len=longest).length_for(spec.max_positions, spec.longest) == longest
    with pytest.raises(InvalidConfiguration, match=f"{longest + 1}, but the model was made for {longest} positions"):
        EngineConfig(model="m", max_model_len=longest + 1).length_for(spec.max_positions, spec.longest)


def test_dynamic_scaling_is_for_the_length_that_is_served(tmp_path: Path) -> None:
    spec = read(tmp_path, LLAMA, rope_scaling={"type": "dynamic", "factor": 2.0})
    scaling = spec.rope.scaling
    assert isinstance(scaling, DynamicScaling)
    assert scaling.stretched(10000.0, 8) == 10000.0
    assert spec.for_length(4096).rope.scaling.stretched(10000.0, 8) == 10000.0  # type: ignore[union-attr]
    longer = spec.for_length(8192).rope.scaling
    assert isinstance(longer, DynamicScaling)
    assert longer.stretched(10000.0, 8) == pytest.approx(10000.0 * 3 ** (8 / 6))
    plain = read(tmp_path, LLAMA, rope_scaling=None)
    assert plain.for_length(8192) is plain


WINDOW = {"sliding_window": 64}
QWEN_WINDOW = WINDOW | {"use_sliding_window": True}
NAMED = {"layer_types": ["full_attention", "sliding_attention"] * 2}


@pytest.mark.parametrize(
    ("config", "fields", "windows"),
    [
        (LLAMA, WINDOW, (None,) * 4),
        (LLAMA, WINDOW | NAMED, (None,) * 4),
        (MISTRAL, WINDOW, (64,) * 4),
        (MISTRAL, {"sliding_window": None}, (None,) * 4),
        (MISTRAL, {}, (4096,) * 4),
        (MISTRAL, WINDOW | NAMED, (None, 64, None, 64)),
        (QWEN2, WINDOW, (None,) * 4),
        (QWEN2, WINDOW | {"use_sliding_window": False}, (None,) * 4),
        (QWEN2, QWEN_WINDOW | {"max_window_layers": 3}, (None, None, None, 64)),
        (QWEN2, QWEN_WINDOW | {"max_window_layers": 0}, (64,) * 4),
        (QWEN2, QWEN_WINDOW, (None,) * 4),  # max_window_layers is 28 where it is left out
        (QWEN3, QWEN_WINDOW | NAMED | {"max_window_layers": 0}, (None, 64, None, 64)),
        (QWEN3, {"use_sliding_window": True, "max_window_layers": 2}, (None, None, 4096, 4096)),
        (QWEN3, {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, (None,) * 4),
    ],
)
def test_windows(
    config: dict[str, Any], fields: dict[str, Any], windows: tuple[int | None, ...], tmp_path: Path
) -> None:
    assert read(tmp_path, config, **fields).windows == windows


@pytest.mark.parametrize(
    ("config", "fields", "biases"),
    [
        (LLAMA, {}, (False, False, False)),
        (LLAMA, {"attention_bias": True}, (True, True, False)),
        (LLAMA, {"mlp_bias": True}, (False, False, True)),
        (MISTRAL, {"attention_bias": True, "mlp_bias": True}, (False, False, False)),
        (QWEN2, {}, (True, False, False)),
        (QWEN2, {"attention_bias": True, "mlp_bias": True}, (True, False, False)),
        (QWEN3, {}, (False, False, False)),
        (QWEN3, {"attention_bias": True, "mlp_bias": True}, (True, True, False)),
    ],
)
def test_biases_are_those_that_the_architecture_has(
    config: dict[str, Any], fields: dict[str, Any], biases: tuple[bool, ...], tmp_path: Path
) -> None:
    spec = read(tmp_path, config, **fields)
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias) == biases
    assert spec.qk_norm == (config is QWEN3)


@pytest.mark.parametrize(
    ("config", "fields", "heads"),
    [
        (LLAMA, {}, (8, 8)),
        (LLAMA, {"head_dim": 16, "num_key_value_heads": 4}, (4, 16)),
        (LLAMA, {"head_dim": None, "num_key_value_heads": None}, (32, 8)),
        (LLAMA, {"num_key_value_heads": ...}, (32, 8)),
        (MISTRAL, {"num_key_value_heads": ...}, (8, 8)),
        (QWEN2, {"num_key_value_heads": ..., "head_dim": 20}, (32, 20)),
        (QWEN3, {"num_key_value_heads": ...}, (32, 128)),
    ],
)
def test_heads(config: dict[str, Any], fields: dict[str, Any], heads: tuple[int, int], tmp_path: Path) -> None:
    spec = read(tmp_path, config, **fields)
    assert (spec.kv_heads, spec.head_dim) == heads


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({}, None, ()),
        ({"eos_token_id": 2}, None, (2,)),
        ({"eos_token_id": [2, 3]}, None, (2, 3)),
        ({"eos_token_id": 2}, {"eos_token_id": [4, 5]}, (4, 5)),
        ({"eos_token_id": 2}, {"eos_token_id": 4}, (4,)),
        ({"eos_token_id": 2}, {"eos_token_id": None}, (2,)),
        ({"eos_token_id": 2}, {}, (2,)),
    ],
)
def test_end_tokens(
    config: dict[str, Any], generation: dict[str, Any] | None, ends: tuple[int, ...], tmp_path: Path
) -> None:
    assert read(tmp_path, LLAMA, generation, **config).eos_ids == ends


@pytest.mark.parametrize(
    ("fields", "dtype"),
    [
        ({}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({"dtype": None, "torch_dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
    ],
)
def test_types(fields: dict[str, Any], dtype: str, tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA, **fields).dtype == dtype


def test_swish_is_silus_other_name(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA, hidden_act="swish") == read(tmp_path, LLAMA, hidden_act="silu")


@pytest.mark.parametrize(
    ("generation", "defaults", "words"),
    [
        (None, SamplingDefaults(), ""),
        ({"eos_token_id": 2}, SamplingDefaults(), ""),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.9},
            SamplingDefaults(temperature=0.6, top_p=0.9),
            "temperature 0.6, top_p 0.9",
        ),
        ({"temperature": 0.7, "top_k": 20}, SamplingDefaults(temperature=0.7, top_k=20), "temperature 0.7, top_k 20"),
        ({"do_sample": False, "temperature": 0.7}, SamplingDefaults(temperature=0.0), "temperature 0"),
        ({"top_k": 0, "min_p": 0.05}, SamplingDefaults(min_p=0.05), "min_p 0.05"),
        (
            {"repetition_penalty": 1.05, "max_new_tokens": 2048, "num_beams": 4},
            SamplingDefaults(repetition_penalty=1.05, max_tokens=2048),
            "repetition_penalty 1.05, max_tokens 2048",
        ),
    ],
)
def test_sampling_defaults(
    generation: dict[str, Any] | None, defaults: SamplingDefaults, words: str, tmp_path: Path
) -> None:
    found = read(tmp_path, LLAMA, generation).sampling
    assert (found, str(found)) == (defaults, words)


@pytest.mark.parametrize(
    ("generation", "named"),
    [
        ({"temperature": -1}, r"generation_config\.json: temperature is -1"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 0.5}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"do_sample": "yes"}, "do_sample"),
        ({"eos_token_id": 1000}, r"generation_config\.json: eos_token_id is \[1000\]; it must be below .*1000"),
    ],
)
def test_sampling_defaults_that_make_no_sense(generation: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointInvalid, match=named):
        read(tmp_path, LLAMA, generation)


@pytest.mark.parametrize(
    ("changes", "kind", "named"),
    [
        ({"architectures": ["PhiForCausalLM"]}, ModelUnsupported, "PhiForCausalLM.*LlamaForCausalLM.*Qwen3ForCausalLM"),
        ({"rope_scaling": {"type": "longrope", "factor": 4}}, ModelUnsupported, "longrope.*supported are.*yarn"),
        ({"rope_scaling": {"type": ["yarn"]}}, ModelUnsupported, "yarn"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, ModelUnsupported, "full_attention"),
        ({"partial_rotary_factor": 0.5}, ModelUnsupported, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, ModelUnsupported, "partial_rotary_factor 0.25"),
        ({"rope_scaling": {"type": "linear"}}, CheckpointInvalid, "factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, CheckpointInvalid, "rope_scaling: factor is 0.5"),
        ({"rope_scaling": {"type": "linear", "factor": 10**400}}, CheckpointInvalid, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 50000.0}}, CheckpointInvalid, "max_positions"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "head_dim": 2}, CheckpointInvalid, "head_dim"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "beta_fast": 0.5}}, CheckpointInvalid, "beta_fast"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "attention_factor": 0}}, CheckpointInvalid, "attention_fac"),
        ({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 0}}, CheckpointInvalid, "original_max"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 1}}, CheckpointInvalid, "truncate"),
        ({"rope_scaling": "yarn"}, CheckpointInvalid, "rope_scaling"),
        ({"rope_theta": 1.0}, CheckpointInvalid, "theta"),
        ({"rope_theta": float("inf")}, CheckpointInvalid, "rope_theta"),
        ({"max_position_embeddings": 10**30}, CheckpointInvalid, "max_position_embeddings"),
        ({"max_position_embeddings": 0}, CheckpointInvalid, "max_position_embeddings"),
        ({"hidden_size": 250}, CheckpointInvalid, "hidden_size is 250.*num_attention_heads"),
        ({"eos_token_id": 1000}, CheckpointInvalid, r"config\.json: eos_token_id"),
        ({"eos_token_id": -1}, CheckpointInvalid, "eos_token_id"),
        ({"attention_bias": "no"}, CheckpointInvalid, "attention_bias"),
        ({"tie_word_embeddings": 1}, CheckpointInvalid, "tie_word_embeddings"),
        ({"dtype": "int8"}, ModelUnsupported, "int8"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_what_is_refused(changes: dict[str, Any], kind: type[Exception], named: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=named):
        read(tmp_path, LLAMA, **changes)


@pytest.mark.parametrize(
    ("changes", "kind", "named"),
    [
        ({"sliding_window": 0}, CheckpointInvalid, "sliding_window"),
        ({"sliding_window": -5}, CheckpointInvalid, "sliding_window"),
        ({"sliding_window": "all"}, CheckpointInvalid, "sliding_window"),
        (WINDOW | {"layer_types": ["full_attention"] * 3}, CheckpointInvalid, "layer_types.*must name 4 layers"),
        (WINDOW | {"layer_types": ["chunked_attention"] * 4}, ModelUnsupported, "chunked_attention"),
        (WINDOW | {"layer_types": [1] * 4}, CheckpointInvalid, "layer_types"),
        (NAMED | {"sliding_window": None}, CheckpointInvalid, "layer_types.*no window"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_windows_that_make_no_sense(changes: dict[str, Any], kind: type[Exception], named: str, tmp_path: Path) -> None:
    with pytest.raises(kind, match=named):
        read(tmp_path, MISTRAL, **changes)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([10**30, 10**400, -1, 0, "yarn", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
ROTATION = st.fixed_dictionaries(
    {"rope_type": st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn"]), "factor": st.just(2.0)},
    optional={
        name: ANYTHING | st.sampled_from([1e308, 1e-308, 1e-3, 64, 1.0])
        for name in [
            *("low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "rope_theta"),
            *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate", "type"),
        ]
    },
)
FIELDS = [
    *(name for name in LLAMA if name != "architectures"),
    *("head_dim", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "attention_bias", "mlp_bias", "sliding_window"),
    *("use_sliding_window", "max_window_layers", "layer_types", "rope_theta", "partial_rotary_factor", "eos_token_id"),
    *("dtype", "torch_dtype", "original_max_position_embeddings", "rope_scaling"),
]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    config=st.sampled_from([LLAMA, MISTRAL, QWEN2, QWEN3]),
    changes=st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=3),
    rotation=st.none() | ROTATION,
)
def test_no_config_escapes_the_error_tree(
    config: dict[str, Any], changes: dict[str, Any], rotation: dict[str, Any] | None, tmp_path: Path
) -> None:
    with suppress(StartupError):
        spec = read(tmp_path, config, rope_parameters=rotation, **changes)
        if isinstance(spec.rope.scaling, YarnScaling):
            assert all(map(math.isfinite, spec.rope.scaling.ramp(spec.rope.theta, spec.head_dim)))
        if isinstance(scaling := spec.for_length(spec.longest).rope.scaling, DynamicScaling):
            assert math.isfinite(scaling.stretched(spec.rope.theta, spec.head_dim))
