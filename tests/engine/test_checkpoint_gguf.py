"""GGUF files written with the gguf library's own writer, as llama.cpp's converter would, and damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_files import add_sizes
from octavo_engine.errors import CheckpointInvalid, ModelUnsupported, StartupError
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.compute.rope import inverse_frequencies
from octavo_engine.model.gguf.file import GgufFile
from octavo_engine.model.gguf.spec import ARCHITECTURES, spec_from_gguf
from octavo_engine.model.gguf.tensors import LAYER, TOP
from octavo_engine.model.loading import load_model, resolve_dtype
from octavo_engine.model.spec import read_spec
from octavo_engine.model.values.rope_spec import LinearScaling
from octavo_engine.model.values.sampling_defaults import SamplingDefaults
from paging import prefill_logits
from tiny_models import LLAMA3, YARN, make_model, oracle_logits

pytestmark = pytest.mark.engine
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
NAMES = {hf: name for table in (TOP, LAYER) for name, hf in table.items()}


def gguf_name(name: str) -> str:
    """llama.cpp's name of a Hugging Face tensor."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{kind}"
    return f"{NAMES[stem]}.{kind}"


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """The row order of llama.cpp's converter."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


METADATA = {
    str: gguf.GGUFWriter.add_string,
    int: gguf.GGUFWriter.add_uint32,
    float: gguf.GGUFWriter.add_float32,
    bool: gguf.GGUFWriter.add_bool,
    list: gguf.GGUFWriter.add_array,
}


def add_rope_scaling(writer: gguf.GGUFWriter, rope: dict[str, Any]) -> None:
    """What llama.cpp's converter writes of a scaling; Llama 3's is a tensor, and dynamic scaling is left out."""
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for field, add in {
            "attention_factor": writer.add_rope_scaling_yarn_attn_factor,
            "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
            "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
        }.items():
            if field in rope:
                add(rope[field])


def write_gguf(model: Any, path: Path, kind: GGMLQuantizationType = GGMLQuantizationType.F32, **extra: Any) -> Path:
    """Write a transformers model; matrices in `kind`."""
    config = model.config
    arch = {hf: name for name, hf in ARCHITECTURES.items()}.get(config.architectures[0], "llama")  # so is Mistral
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(path, arch)
    add_sizes(writer, config)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    add_rope_scaling(writer, config.rope_parameters)
    for key, value in extra.pop("metadata", {}).items():  # in place of what is there
        METADATA[type(value)](writer, key, value)
    for name, tensor in model.state_dict().items():
        data = tensor.float().numpy()
        if arch == "llama" and (".q_proj." in name or ".k_proj." in name):
            data = permute(data, config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads)
        stored = kind if data.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(data, stored), raw_dtype=stored)
    for name, data in extra.items():
        writer.add_tensor(f"{name}.weight", data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def named(model: Any) -> Any:
    """A fresh model's config does not name its class yet."""
    model.config.architectures = [type(model).__name__]
    return model


def load(path: Path) -> Decoder:
    return load_model(str(path), dtype=torch.float32, device=torch.device("cpu"), kernels=choose_attention("torch"))


CONVERTED: dict[str, dict[str, Any]] = {  # variant -> what of it llama.cpp's converter cannot store
    "llama": {},
    "llama_biases": {},
    "llama_tied": {},
    "llama_wide_heads": {},
    "llama_linear": {},
    "llama_yarn": {},
    "llama_yarn_broken_ends": {"rope_parameters": YARN | {"beta_fast": 6.0, "beta_slow": 0.5, "attention_factor": 0.8}},
    "mistral_yarn_window": {"sliding_window": None},
    "qwen2": {},
    "qwen2_tied_yarn": {},
    "qwen3": {"head_dim": 16},
    "qwen3_yarn": {"head_dim": 16, "rope_parameters": YARN},
}


def converted(variant: str, **changes: Any) -> Any:
    """A model of sizes that all storage types can hold; a tied head is not stored."""
    model = named(make_model(variant, **(SIZES | CONVERTED[variant] | changes)))
    if model.config.tie_word_embeddings:
        state = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
        model.state_dict = lambda: state
    return model


def check_logits(model: Any, path: Path) -> None:
    tokens = torch.arange(1, 40)
    found = prefill_logits(load(path), tokens, [39])
    torch.testing.assert_close(found, oracle_logits(model, tokens), atol=1e-4, rtol=0)


@pytest.mark.parametrize("variant", CONVERTED)
def test_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    model = converted(variant)
    check_logits(model, write_gguf(model, tmp_path / "m.gguf"))


def test_a_window_that_is_stored_holds_for_every_layer(tmp_path: Path) -> None:
    model = named(make_model("mistral_window", **SIZES))
    check_logits(model, write_gguf(model, tmp_path / "m.gguf", metadata={"llama.attention.sliding_window": 9}))


@pytest.mark.parametrize("key", ["rope.scale_linear", "rope.scaling.factor"])
def test_a_factor_without_a_type_is_linear(key: str, plain_model: Any, tmp_path: Path) -> None:
    """The oldest spelling, and what llama.cpp makes of today's."""
    rope = read_spec(str(write_gguf(plain_model, tmp_path / "m.gguf", metadata={f"llama.{key}": 4.0}))).rope
    assert rope.scaling == LinearScaling(4.0)


def test_positions_ends_and_sampling_are_read(tmp_path: Path) -> None:
    model = named(make_model("llama_yarn", **SIZES, max_position_embeddings=32))
    metadata = {
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.eom_token_id": 2,
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 40,
        "general.sampling.top_p": 0.75,
        "general.sampling.min_p": 0.25,
        "general.sampling.penalty_repeat": 1.5,
    }
    spec = read_spec(str(write_gguf(model, tmp_path / "m.gguf", metadata=metadata)))
    assert (spec.max_positions, spec.eos_ids) == (64, (2, 5))
    assert spec.sampling == SamplingDefaults(temperature=0.5, top_p=0.75, top_k=40, min_p=0.25, repetition_penalty=1.5)


YARN_KEYS = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0}


@pytest.mark.parametrize(
    ("metadata", "kind", "named_key"),
    [
        ({"llama.rope.scaling.type": "longrope"}, ModelUnsupported, r"longrope.*none, linear, yarn.*rope_freqs"),
        ({"llama.rope.scaling.type": "yarn"}, CheckpointInvalid, r"rope\.scaling\.factor is missing"),
        ({"llama.rope.scaling.type": "linear"}, CheckpointInvalid, "rope.scale_linear is missing"),
        ({"llama.rope.scale_linear": 0.5}, CheckpointInvalid, "scale_linear is 0.5"),
        (YARN_KEYS | {"llama.rope.scaling.original_context_length": 0}, CheckpointInvalid, "original_context_length"),
        (YARN_KEYS | {"llama.rope.scaling.yarn_beta_fast": 0.5}, CheckpointInvalid, "yarn_beta_fast"),
        (YARN_KEYS | {"llama.rope.scaling.yarn_attn_factor": 0.0}, CheckpointInvalid, "yarn_attn_factor"),
        (YARN_KEYS | {"llama.rope.scaling.yarn_attn_factor": 1.0}, ModelUnsupported, "attn_factor is 1.0.* say 1.069"),
        (YARN_KEYS | {"llama.rope.scaling.attn_factor": 0.5}, ModelUnsupported, "scaling.attn_factor is 0.5"),
        (YARN_KEYS | {"llama.rope.scaling.yarn_ext_factor": 0.5}, ModelUnsupported, "yarn_ext_factor"),
        (YARN_KEYS | {"llama.rope.scaling.yarn_log_multiplier": 1.0}, ModelUnsupported, "yarn_log_multiplier"),
        ({"llama.rope.dimension_count": 8}, ModelUnsupported, "part of each head"),
        ({"llama.attention.causal": False}, ModelUnsupported, "attention.causal is False"),
        ({"llama.expert_count": 8}, ModelUnsupported, "expert_count is 8"),
        ({"llama.logit_scale": 16.0}, ModelUnsupported, "logit_scale"),
        ({"llama.final_logit_softcapping": 30.0}, ModelUnsupported, "softcapping"),
        ({"llama.attention.head_count_kv": [2, 2, 4]}, CheckpointInvalid, "head_count_kv"),
        ({"tokenizer.ggml.eot_token_id": 199}, CheckpointInvalid, "eot_token_id is 199"),
        ({"split.count": 3}, ModelUnsupported, r"m\.gguf is one of 3 parts of a model; merge them"),
        ({"general.sampling.temp": 9.0}, CheckpointInvalid, "sampling.temp"),
        ({"general.sampling.top_p": 0.0}, CheckpointInvalid, "sampling.top_p"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_metadata_that_is_refused(
    metadata: dict[str, Any], kind: type[Exception], named_key: str, plain_model: Any, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=named_key):
        read_spec(str(write_gguf(plain_model, tmp_path / "m.gguf", metadata=metadata)))


def test_two_scalings_at_once_are_refused(plain_model: Any, tmp_path: Path) -> None:
    factors = np.ones(8, dtype=np.float32)
    path = write_gguf(plain_model, tmp_path / "m.gguf", rope_freqs=factors, metadata=YARN_KEYS)
    with pytest.raises(ModelUnsupported, match="both as keys and as rope_freqs"):
        read_spec(str(path))


WIDTHS = ("llama.attention.key_length", "llama.attention.value_length", "llama.rope.dimension_count")


class Unread(bytes):
    """A file of which no byte may be asked for any more."""

    def __getitem__(self, part: Any, /) -> Any:
        raise AssertionError(f"{part} is read")


@pytest.mark.parametrize("width", [1 << 31, 32])
def test_a_tensor_of_factors_is_not_read_before_it_is_what_the_widths_say(
    width: int, plain_model: Any, tmp_path: Path
) -> None:
    """A header far away may claim a tensor of gigabytes."""
    metadata = dict.fromkeys(WIDTHS, width)
    path = write_gguf(plain_model, tmp_path / "m.gguf", rope_freqs=np.ones(8, dtype=np.float32), metadata=metadata)
    file = GgufFile.open(path)
    file.data = Unread(file.data[:])
    with pytest.raises(CheckpointInvalid, match="key_length is 2147483648" if width > 32 else "must hold 16 float32"):
        spec_from_gguf(file)


@pytest.fixture(scope="module")
def plain_model() -> Any:
    return named(make_model("llama", **SIZES))


def test_llama3_scaling_comes_as_a_tensor(tmp_path: Path) -> None:
    model = named(make_model("llama_llama3", **SIZES))
    plain = inverse_frequencies(read_plain_rope(model, tmp_path), 16)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    decoder = load(write_gguf(model, tmp_path / "m.gguf", rope_freqs=factors))
    tokens = torch.arange(1, 40)
    torch.testing.assert_close(prefill_logits(decoder, tokens, [39]), oracle_logits(model, tokens), atol=1e-4, rtol=0)


def read_plain_rope(model: Any, tmp_path: Path) -> Any:
    rope = read_spec(str(write_gguf(model, tmp_path / "plain.gguf"))).rope
    assert (rope.theta, rope.scaling) == (LLAMA3["rope_theta"], None)
    return rope


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
def test_stored_types(kind: str, tmp_path: Path) -> None:
    """The same file read with the gguf library's dequantization, put into transformers' model, gives the oracle."""
    model, stored = named(make_model("llama", **SIZES)), GGMLQuantizationType[kind]
    path = write_gguf(model, tmp_path / "m.gguf", stored)
    for parameter in model.parameters():
        if parameter.ndim == 2:
            rounded = gguf.quants.dequantize(gguf.quants.quantize(parameter.detach().numpy(), stored), stored)
            parameter.data = torch.from_numpy(rounded)
    tokens = torch.arange(1, 40)
    found = prefill_logits(load(path), tokens, [39])
    torch.testing.assert_close(found, oracle_logits(model, tokens), atol=1e-4, rtol=0)
    expected = {"F16": torch.float16}.get(kind, torch.bfloat16)
    assert resolve_dtype(read_spec(str(path)), "auto") == expected


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(named(make_model("llama", **SIZES)), tmp_path_factory.mktemp("gguf") / "m.gguf").read_bytes()


def test_the_header_reader_agrees_with_the_library(smollm2_gguf: Path) -> None:
    ours, theirs = GgufFile.open(smollm2_gguf), gguf.GGUFReader(smollm2_gguf)
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert (info.shape, info.kind) == (tuple(reversed(tensor.shape.tolist())), tensor.tensor_type.value)
        assert info.offset == tensor.data_offset
    for key in (
        "llama.rope.freq_base",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "tokenizer.chat_template",
    ):
        assert ours.metadata[key] == theirs.fields[key].contents()


def test_unsupported_files_name_what_is(tmp_path: Path) -> None:
    model = named(make_model("llama", **SIZES))
    plain = write_gguf(model, tmp_path / "plain.gguf")
    (tmp_path / "other.gguf").write_bytes(
        plain.read_bytes().replace(b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05\x00\x00\x00\x00\x00\x00\x00gemma")
    )
    with pytest.raises(ModelUnsupported, match=r"gemma.*llama"):
        load(tmp_path / "other.gguf")
    with pytest.raises(ModelUnsupported, match=r"several \.gguf files"):
        load(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 0.05, 0.5, 0.9999])
def test_truncated_files(share: float, sound: bytes, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(sound[: int(share * len(sound))])
    with pytest.raises(CheckpointInvalid, match=r"cut\.gguf"):
        load(tmp_path / "cut.gguf")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = named(make_model("llama", **SIZES))
    state = {name: tensor for name, tensor in model.state_dict().items() if "layers.1.mlp.up" not in name}
    model.state_dict = lambda: state
    with pytest.raises(CheckpointInvalid, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        load(write_gguf(model, tmp_path / "m.gguf"))


@settings(max_examples=150, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=8))
def test_no_damage_escapes_the_error_tree(
    changes: list[tuple[int, int]], sound: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(sound)
    for place, value in changes:
        data[place] = value
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"
    path.write_bytes(data)
    try:
        load(path)
    except StartupError:
        return  # refused, by name
