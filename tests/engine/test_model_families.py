"""Families against transformers: how it reads a config, what it answers greedily, and what it makes of long contexts.

Contexts are longer than every window and than the positions before a scaling. `test_model_exactness` holds the logits
of each variant against transformers for every kernel.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine_harness import GREEDY, Harness
from octavo_engine.errors import CheckpointInvalid
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.compute.rope import inverse_frequencies
from octavo_engine.model.huggingface.config import spec_from_config
from octavo_engine.model.loading import load_model
from octavo_engine.model.spec import read_spec
from paging import prefill_logits
from tiny_models import make_model, oracle_logits, save_model

pytestmark = pytest.mark.engine
TOLERANCE = 1e-4
SIZES = {
    "vocab_size": 199,
    "hidden_size": 512,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 64,
    "max_position_embeddings": 256,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
WINDOW = {"sliding_window": 7, "use_sliding_window": True}

# What people have written into a config.json, in the spellings of all years.
ROPES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "theta at the top": {"rope_theta": 500000.0},
    "linear by type": {"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.5}},
    "linear by rope_type": {"rope_scaling": {"rope_type": "linear", "factor": 3}},
    "both types": {"rope_scaling": {"type": "yarn", "rope_type": "linear", "factor": 3.0}},
    "today's linear": {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e5}},
    "both sections": {
        "rope_scaling": {"type": "linear", "factor": 3.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 77.0},
        "rope_theta": 99.0,
    },
    "llama3": {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"type": "llama3"}},
    "today's llama3": {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
    "yarn": {"rope_theta": 1e6, "rope_scaling": YARN | {"type": "yarn"}},
    "yarn in all of the context": {"rope_scaling": {"type": "yarn", "factor": 4.0}},
    "yarn, original at the top": {"original_max_position_embeddings": 32, "rope_scaling": YARN | {"type": "yarn"}},
    "yarn, its factor from the lengths": {"rope_scaling": YARN | {"type": "yarn", "factor": None}},
    "yarn, attention named": {"rope_scaling": YARN | {"rope_type": "yarn", "attention_factor": 0.75}},
    "yarn, mscale": {"rope_parameters": YARN | {"rope_type": "yarn", "mscale": 0.707, "mscale_all_dim": 0.5}},
    "yarn, one mscale": {"rope_parameters": YARN | {"rope_type": "yarn", "mscale": 0.707}},
    "yarn, betas": {"rope_parameters": YARN | {"rope_type": "yarn", "beta_fast": 8, "beta_slow": 2}},
    "yarn, equal betas": {"rope_parameters": YARN | {"rope_type": "yarn", "beta_fast": 3, "beta_slow": 3.0}},
    "yarn, broken ends": {"rope_parameters": YARN | {"rope_type": "yarn", "truncate": False}},
    "yarn, few positions": {"rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 2}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
}


def write_config(place: Path, kind: str, **fields: Any) -> Path:
    """A config.json as someone wrote it, not as transformers would."""
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[kind] + "ForCausalLM"
    (place / "config.json").write_text(json.dumps(SIZES | {"architectures": [name], "model_type": kind} | fields))
    return place


@pytest.mark.parametrize("head_dim", [8, 64])
@pytest.mark.parametrize("name", ROPES)
def test_rotations_are_those_that_transformers_reads(name: str, head_dim: int, tmp_path: Path) -> None:
    place = write_config(tmp_path, "llama", head_dim=head_dim, **ROPES[name])
    theirs = LlamaRotaryEmbedding(transformers.AutoConfig.from_pretrained(place))
    rope = spec_from_config(place).rope
    torch.testing.assert_close(inverse_frequencies(rope, head_dim), theirs.inv_freq, atol=0, rtol=3e-7)
    assert rope.attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-12)


def test_every_scaling_changes_something(tmp_path: Path) -> None:
    """The table above would say nothing if its scalings did not show at these sizes."""
    plain, seen = inverse_frequencies(spec_from_config(write_config(tmp_path, "llama")).rope, 64), set()
    for name, fields in ROPES.items():
        rope = spec_from_config(write_config(tmp_path, "llama", head_dim=64, **fields)).rope
        found = inverse_frequencies(rope, 64)
        seen.add((*found.tolist(), rope.attention_factor))
        if name not in ("nothing", "dynamic"):
            assert not torch.equal(found, plain) or rope.attention_factor != 1, name
    assert len(seen) >= 15


WINDOWS: list[dict[str, Any]] = [
    {},
    {"sliding_window": None},
    {"sliding_window": 7},
    WINDOW,
    {"use_sliding_window": True},
    WINDOW | {"max_window_layers": 1},
    WINDOW | {"max_window_layers": 0},
    WINDOW | {"sliding_window": None, "max_window_layers": 0},
    {"use_sliding_window": False, "sliding_window": 7, "max_window_layers": 0},
]
# Not for Mistral: transformers says that its class cannot do this, and does something else; ours can.
NAMED = WINDOW | {"max_window_layers": 0, "layer_types": ["full_attention", "sliding_attention", "full_attention"]}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [*product(["mistral", "qwen2", "qwen3"], WINDOWS), ("qwen2", NAMED), ("qwen3", NAMED)],
    ids=str,
)
def test_windows_are_those_that_transformers_reads(kind: str, fields: dict[str, Any], tmp_path: Path) -> None:
    place = write_config(tmp_path, kind, **fields)
    config = transformers.AutoConfig.from_pretrained(place)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    expected = tuple(config.sliding_window if kind == "sliding_attention" else None for kind in kinds)
    assert spec_from_config(place).windows == expected


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_what_a_config_leaves_out_is_what_transformers_assumes(kind: str, tmp_path: Path) -> None:
    place = write_config(tmp_path, kind)
    spec, config = spec_from_config(place), transformers.AutoConfig.from_pretrained(place)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    assert (spec.kv_heads, spec.head_dim) == (config.num_key_value_heads, head_dim)
    assert (spec.eps, spec.tied) == (config.rms_norm_eps, config.tie_word_embeddings)
    assert spec.rope.theta == config.rope_parameters["rope_theta"]


def load(path: Path, **options: Any) -> Decoder:
    kernels = choose_attention("torch")
    return load_model(str(path), dtype=torch.float32, device=torch.device("cpu"), kernels=kernels, **options)


def random_tokens(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(3, 199, (count,), generator=torch.Generator().manual_seed(seed))


GREEDY_VARIANTS = [
    "llama_tied",
    "llama_biases",
    "llama_linear",
    "llama_llama3",
    "llama_yarn",
    "llama_dynamic",
    "mistral_window",
    "mistral_yarn_window",
    "qwen2_named_layers",
    "qwen2_tied_yarn",
    "qwen3_biases_window",
    "qwen3_yarn",
]


@pytest.mark.parametrize("variant", GREEDY_VARIANTS)
def test_greedy_answers_are_transformers_own(variant: str, tmp_path: Path) -> None:
    """Prompts before, at and after the edges of windows, scalings and blocks, answered together, in chunks."""
    model = make_model(variant)
    decoder = load(save_model(model, tmp_path))
    prompts = [random_tokens(length, seed).tolist() for seed, length in enumerate([1, 8, 16, 25, 41])]
    harness, params = Harness(decoder, blocks=64, budget=24), replace(GREEDY, max_tokens=20)
    answers = harness.together(prompts, params)
    model.generation_config.eos_token_id = None
    for prompt, answer in zip(prompts, answers, strict=True):
        expected = model.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False, pad_token_id=0)
        assert [*prompt, *answer.tokens] == expected[0].tolist()
        wanted = oracle_logits(model, expected[0, :-1])[len(prompt) - 1 :]
        torch.testing.assert_close(torch.stack(answer.logits), wanted, atol=TOLERANCE, rtol=0)
    again = harness.together(prompts, params)
    assert again[-1].request.num_cached == 32, "two blocks of its prompt are found"
    assert [answer.tokens for answer in again] == [answer.tokens for answer in answers]


SHORT_DYNAMIC = {
    "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    "max_position_embeddings": 32,
}


def test_dynamic_scaling_leaves_sequences_within_the_original_positions_alone(tmp_path: Path) -> None:
    model = make_model("llama_dynamic", **SHORT_DYNAMIC)
    decoder, tokens = load(save_model(model, tmp_path)), random_tokens(32)
    found = prefill_logits(decoder, tokens, [20, 1, 11])
    torch.testing.assert_close(found, oracle_logits(model, tokens), atol=TOLERANCE, rtol=0)
    assert (decoder.spec.max_positions, decoder.spec.longest) == (32, 64)


@pytest.mark.parametrize("chunks", [[50], [17, 1, 32]], ids=str)
def test_dynamic_scaling_turns_a_sequence_of_the_served_length_as_transformers_does(
    chunks: list[int], tmp_path: Path
) -> None:
    model = make_model("llama_dynamic", **SHORT_DYNAMIC)
    decoder, tokens = load(save_model(model, tmp_path), max_model_len=50), random_tokens(50)
    wanted = oracle_logits(model, tokens)
    torch.testing.assert_close(prefill_logits(decoder, tokens, chunks), wanted, atol=TOLERANCE, rtol=0)
    plain = prefill_logits(load(tmp_path), tokens, chunks)
    assert (plain - wanted).abs().max() > 100 * TOLERANCE, "the scaling shows"


def test_tied_weights_may_be_stored_twice_if_they_are_the_same(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = make_model("llama_tied")
    file = save_model(model, tmp_path) / "model.safetensors"
    tensors = load_file(file)
    embedding = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": embedding.clone()}, file)
    tokens = random_tokens(20)
    found = prefill_logits(load(tmp_path), tokens, [20])
    torch.testing.assert_close(found, oracle_logits(model, tokens), atol=TOLERANCE, rtol=0)
    for other in (embedding + 1, embedding.half(), embedding[:-1].clone()):
        save_file(tensors | {"lm_head.weight": other}, file)
        with pytest.raises(CheckpointInvalid, match=r"lm_head\.weight is not model\.embed_tokens\.weight"):
            load(tmp_path)
    head = {"lm_head.weight": embedding}
    save_file({name: tensor for name, tensor in tensors.items() if "embed" not in name} | head, file)
    with pytest.raises(CheckpointInvalid, match=r"model\.embed_tokens\.weight is missing"):
        load(tmp_path)


def test_an_untied_model_needs_its_head(tmp_path: Path) -> None:
    save_model(make_model("llama_tied"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(CheckpointInvalid, match=r"lm_head\.weight is missing"):
        load(tmp_path)


def test_sampling_defaults_come_with_the_checkpoint(tmp_path: Path) -> None:
    model = make_model("qwen2")
    model.generation_config.update(do_sample=True, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05)
    model.generation_config.eos_token_id = [5, 6]
    spec = read_spec(str(save_model(model, tmp_path)))
    assert str(spec.sampling) == "temperature 0.7, top_p 0.8, top_k 20, repetition_penalty 1.05"
    assert spec.eos_ids == (5, 6)
