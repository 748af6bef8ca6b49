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

from octavo_engine.errors import CheckpointInvalid, ModelUnsupported, StartupError
from octavo_engine.kernels.attention import choose
from octavo_engine.model.decoder import Decoder
from octavo_engine.model.gguf_file import GgufFile
from octavo_engine.model.gguf_spec import ARCHITECTURES
from octavo_engine.model.gguf_tensors import LAYER, TOP
from octavo_engine.model.loading import load_model, resolve_dtype
from octavo_engine.model.rope import inverse_frequencies
from octavo_engine.model.spec import read_spec
from paging import prefill_logits
from tiny_models import LLAMA3, make_model, oracle_logits

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


def write_gguf(model: Any, path: Path, kind: GGMLQuantizationType = GGMLQuantizationType.F32, **extra: Any) -> Path:
    """Write a transformers model; matrices in `kind`."""
    config = model.config
    arch = {hf: name for name, hf in ARCHITECTURES.items()}[config.architectures[0]]
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_eos_token_id(config.eos_token_id)
    for key, value in extra.pop("metadata", {}).items():
        writer.add_string(key, value)
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
    return load_model(str(path), dtype=torch.float32, device=torch.device("cpu"), kernels=choose("torch"))


@pytest.mark.parametrize("variant", ["llama", "llama_biases", "llama_tied", "qwen2", "qwen3"])
def test_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    changes = SIZES | ({"head_dim": 16} if variant == "qwen3" else {})
    model = named(make_model(variant, **changes))
    if model.config.tie_word_embeddings:
        state = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
        model.state_dict = lambda: state
    decoder = load(write_gguf(model, tmp_path / "m.gguf"))
    tokens = torch.arange(1, 40)
    torch.testing.assert_close(prefill_logits(decoder, tokens, [39]), oracle_logits(model, tokens), atol=1e-4, rtol=0)


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
    yarn = write_gguf(model, tmp_path / "yarn.gguf", metadata={"llama.rope.scaling.type": "yarn"})
    with pytest.raises(ModelUnsupported, match="yarn"):
        load(yarn)
    (tmp_path / "other.gguf").write_bytes(
        yarn.read_bytes().replace(b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05\x00\x00\x00\x00\x00\x00\x00gemma")
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
