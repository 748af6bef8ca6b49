"""Quantized checkpoints of every method compute what their codes mean, whatever the schedule.

The oracle is transformers with the exactly dequantized weights, in float32; nothing of it knows of quantization.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_harness import GREEDY, Answered, Harness
from octavo_engine.errors import CheckpointInvalid, ModelUnsupported
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.cpu import library
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.loading import load_model, open_checkpoint
from octavo_engine.model.spec import read_spec
from octavo_engine.model.tensors.costs import weight_bytes
from octavo_engine.model.tensors.sharding import shard_of
from octavo_engine.model.weights.lazy import piece_of
from octavo_engine.preflight.checkpoint import look_at_path
from paging import prefill_logits
from quantized_checkpoints import (
    Recipe,
    awq_config,
    awq_gemm,
    awq_gemv,
    compressed_config,
    gptq,
    gptq_config,
    gptq_v2,
    pack_quantized,
    pack_quantized_by_activation,
    pack_quantized_symmetric,
    save_quantized,
)
from tiny_models import make_model, oracle_logits

pytestmark = pytest.mark.engine
TOLERANCE = 1e-4
BACKEND = "torch" if library.load() is None else "cpu"  # what `auto` is here
MIXED = {r".*v_proj": {"bits": 8}, r".*up_proj": {"bits": 8}}

# name -> (a tiny model, how it is written); inputs are 48 (96 in qwen3's output) and 80
RECIPES: dict[str, tuple[str, Recipe]] = {
    "awq gemm": ("llama", Recipe(awq_config(), awq_gemm, group=16)),
    "awq gemv": ("mistral_window", Recipe(awq_config(version="gemv", group_size=-1), awq_gemv, group=-1)),
    "awq, some plain": (
        "qwen2",
        Recipe(
            awq_config(modules_to_not_convert=["k_proj", "layers.1"]),
            awq_gemm,
            group=16,
            plain=("k_proj", "layers.1."),
        ),
    ),
    "gptq": ("llama_biases", Recipe(gptq_config(), gptq)),
    "gptq, by activation": (
        "llama_tied",
        Recipe(gptq_config(desc_act=True, sym=True), gptq, symmetric=True, by_activation=True),
    ),
    "gptq, mixed bits": (
        "llama",
        Recipe(gptq_config(dynamic=MIXED), gptq, changed={"v_proj": 8, "up_proj": 8}),
    ),
    "gptq_v2, 3 bits": ("qwen2", Recipe(gptq_config(bits=3, checkpoint_format="gptq_v2"), gptq_v2, bits=3)),
    "gptq_v2, 8 bits, by activation": (
        "qwen3",
        Recipe(gptq_config(bits=8, desc_act=True, checkpoint_format="gptq_v2"), gptq_v2, bits=8, by_activation=True),
    ),
    "compressed-tensors": (
        "qwen3",
        Recipe(compressed_config(), pack_quantized_symmetric, group=16, symmetric=True, scale_type=torch.bfloat16),
    ),
    "compressed-tensors, by activation": (
        "llama",
        Recipe(
            compressed_config(actorder="group"), pack_quantized_by_activation, group=16, symmetric=True,
            by_activation=True,
        ),
    ),
    "compressed-tensors, 8 bits by channel": (
        "llama",
        Recipe(
            compressed_config(num_bits=8, strategy="channel", group_size=None, symmetric=False,
                              ignore=["lm_head", "re:.*o_proj"]),
            pack_quantized, bits=8, group=-1, plain=("o_proj",),
        ),
    ),
}  # fmt: skip


def load(path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return load_model(str(path), dtype=dtype, device=torch.device("cpu"), kernels=choose_attention(BACKEND))


def random_tokens(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(199, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", RECIPES)
def test_logits_equal_transformers_with_the_dequantized_weights(name: str, tmp_path: Path) -> None:
    variant, recipe = RECIPES[name]
    model = make_model(variant)
    before = [parameter.clone() for parameter in model.parameters()]
    decoder = load(save_quantized(model, tmp_path, recipe))
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    tokens = random_tokens(45)
    found = prefill_logits(decoder, tokens, [16, 1, 28])
    torch.testing.assert_close(found, oracle_logits(model, tokens), atol=TOLERANCE, rtol=0)
    assert decoder.parameter_bytes == weight_bytes(decoder.spec, 4)


def test_in_bfloat16_they_are_as_close_as_plain_ones(tmp_path: Path) -> None:
    model = make_model("llama")
    decoder = load(save_quantized(model, tmp_path / "few", RECIPES["awq gemm"][1]), torch.bfloat16)
    model.save_pretrained(tmp_path / "plain")  # with the dequantized weights
    plain = load(tmp_path / "plain", torch.bfloat16)
    tokens = random_tokens(30)
    wanted = oracle_logits(model, tokens)
    off = [(prefill_logits(one, tokens, [30]) - wanted).abs().mean() for one in (decoder, plain)]
    assert off[0] < 1.25 * off[1]


# ---- schedules -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["gptq, by activation", "awq, some plain"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Decoder]:
    """A model, and the decoder of its quantized checkpoint."""
    variant, recipe = RECIPES[request.param]
    model = make_model(variant, seed=3)
    return model, load(save_quantized(model, tmp_path_factory.mktemp("few"), recipe))


LENGTHS = (1, 5, 15, 16, 17, 31, 33, 40, 48, 61)
PROMPTS = [tuple(random_tokens(length, seed).tolist()) for seed, length in enumerate(LENGTHS)]
NEAR_TIE = 1e-4


def check(
    answers: list[Answered], model: Any, prompts: list[tuple[int, ...]] = PROMPTS, tolerance: float = TOLERANCE
) -> None:
    """Every token is the oracle's, which reads prompt and answer at once: by induction, its own greedy answer."""
    for prompt, answer in zip(prompts, answers, strict=True):
        wanted = oracle_logits(model, torch.tensor([*prompt, *answer.tokens[:-1]]))[len(prompt) - 1 :]
        torch.testing.assert_close(torch.stack(answer.logits), wanted, atol=tolerance, rtol=0)
        best = wanted.topk(2).values
        equal = wanted.argmax(dim=1) == torch.tensor(answer.tokens)
        assert bool((equal | (best[:, 0] - best[:, 1] < NEAR_TIE)).all())
        assert equal.float().mean() > 0.9


class TestSchedules:
    """Greedy tokens equal transformers' own: whole, chunked, cached, preempted, beside what is aborted."""

    def test_together_and_in_chunks(self, served: tuple[Any, Decoder]) -> None:
        model, decoder = served
        check(Harness(decoder, caching=False).together(PROMPTS), model)
        check(Harness(decoder, budget=13, caching=False).together(PROMPTS), model)

    def test_with_a_prefix_hit(self, served: tuple[Any, Decoder]) -> None:
        model, decoder = served
        harness = Harness(decoder, budget=24)
        harness.together(PROMPTS)
        answers = harness.together(PROMPTS)
        assert sum(answer.request.num_cached for answer in answers) > 150
        check(answers, model)

    def test_after_preemption(self, served: tuple[Any, Decoder]) -> None:
        model, decoder = served
        chosen = PROMPTS[3:]
        answers = Harness(decoder, blocks=12).together(chosen, replace(GREEDY, max_tokens=40))
        assert sum(answer.request.num_preemptions for answer in answers) >= 2
        check(answers, model, chosen)

    def test_beside_requests_that_are_aborted(self, served: tuple[Any, Decoder]) -> None:
        model, decoder = served
        harness = Harness(decoder, blocks=80)
        strangers = [harness.submit(prompt) for prompt in PROMPTS[::2]]
        mine = [harness.submit(prompt) for prompt in PROMPTS]
        for _ in range(4):
            harness.engine.step()
        for stranger in strangers:
            harness.engine.abort(stranger.id)
        check(harness.finish(mine), model)


@pytest.fixture(scope="module")
def smollm2(smollm2_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Decoder]:
    """The real model in 4 bits: groups of 128, of which the last of 576 inputs has 64, in the order of activations."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2_checkpoint, dtype=torch.float32, attn_implementation="eager")
    recipe = Recipe(gptq_config(group_size=128, desc_act=True), gptq, group=128, by_activation=True)
    return model.eval(), load(save_quantized(model, tmp_path_factory.mktemp("smollm2"), recipe))


@pytest.mark.soak
def test_the_real_model_whole_cached_and_preempted(smollm2: tuple[Any, Decoder]) -> None:
    model, decoder = smollm2
    prompts = [tuple(torch.randint(1000, 40_000, (length,), generator=torch.Generator().manual_seed(length)).tolist())
               for length in LENGTHS]  # fmt: skip
    harness = Harness(decoder, budget=48)
    check(harness.together(prompts), model, prompts, tolerance=5e-4)
    check(harness.together(prompts), model, prompts, tolerance=5e-4)
    answers = Harness(decoder, blocks=10).together(prompts[3:], replace(GREEDY, max_tokens=64))
    assert sum(answer.request.num_preemptions for answer in answers) >= 2
    check(answers, model, prompts[3:], tolerance=5e-4)


# ---- damaged ones ----------------------------------------------------------------------------------------------------

UP = "model.layers.1.mlp.up_proj"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_quantized(make_model("llama"), tmp_path, RECIPES["gptq, mixed bits"][1])


def change(place: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add, or take away (None) tensors of UP."""
    file = place / "model.safetensors"
    found = load_file(file) | {f"{UP}.{name}": tensor for name, tensor in tensors.items() if tensor is not None}
    for name in (name for name, tensor in tensors.items() if tensor is None):
        del found[f"{UP}.{name}"]
    save_file(found, file)


def test_a_packed_tensor_of_another_type_is_refused(checkpoint: Path) -> None:
    change(checkpoint, qweight=torch.zeros(20, 80))
    with pytest.raises(ModelUnsupported, match=r"up_proj\.qweight is stored as F32; supported are I32"):
        load(checkpoint)
    change(checkpoint, qweight=torch.zeros(12, 80, dtype=torch.int32), scales=torch.zeros(2, 80, dtype=torch.int32))
    with pytest.raises(ModelUnsupported, match=r"up_proj\.scales is stored as I32"):
        load(checkpoint)


def test_a_missing_packed_tensor_is_named(checkpoint: Path) -> None:
    change(checkpoint, scales=None)
    with pytest.raises(CheckpointInvalid, match=r"up_proj\.scales is missing"):
        load(checkpoint)


def test_an_index_that_cannot_be_is_named_with_its_module(checkpoint: Path) -> None:
    change(checkpoint, g_idx=torch.zeros(48, dtype=torch.int32))
    with pytest.raises(CheckpointInvalid, match=rf"quantized weight of {UP} cannot be read.*groups of 32"):
        load(checkpoint)


def test_a_bias_that_the_model_has_not_must_be_zero(checkpoint: Path) -> None:
    change(checkpoint, bias=torch.zeros(80))
    load(checkpoint)
    change(checkpoint, bias=torch.full((80,), 1e-3))
    with pytest.raises(CheckpointInvalid, match=r"up_proj\.bias is in the checkpoint"):
        load(checkpoint)


def test_other_bits_than_the_config_says_are_seen_by_their_shape(checkpoint: Path) -> None:
    place = checkpoint / "config.json"
    config = json.loads(place.read_text())
    config["quantization_config"]["dynamic"] = {}
    place.write_text(json.dumps(config))
    with pytest.raises(CheckpointInvalid, match=r"v_proj\.qweight has the shape \[12, 16\]; the config says \[6, 16\]"):
        load(checkpoint)


def test_what_is_refused_is_refused_before_any_weight_file_is_opened(checkpoint: Path) -> None:
    place = checkpoint / "config.json"
    place.write_text(place.read_text().replace('"gptq"', '"aqlm"', 1))
    (checkpoint / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelUnsupported, match="aqlm"):
        open_checkpoint(str(checkpoint))


def test_a_checkpoint_is_looked_at_by_its_headers(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text("{}")
    found = look_at_path(str(checkpoint))
    assert found.spec == read_spec(str(checkpoint))
    assert found.spec.quantization is not None
    assert found.shapes[f"{UP}.qweight"] == (12, 80)
    assert weight_bytes(found.spec, 4) < weight_bytes(replace(found.spec, quantization=None), 4) / 1.5


@pytest.mark.parametrize("rank", range(3))
def test_what_a_rank_holds_is_what_is_counted(rank: int, tmp_path: Path) -> None:
    """Also of weights of whose inputs it has some, in groups that are in no order: those are expanded."""
    variant, recipe = RECIPES["gptq, by activation"]
    spec, source = open_checkpoint(str(save_quantized(make_model(variant), tmp_path, recipe)))
    shard = shard_of(spec, rank, 3)
    held, expanded = 0, set()
    for part in (part for parts in shard.parameters.values() for part in parts):
        few = source.quantized(part)
        piece = torch.empty(part.wanted) if few is None else piece_of(few, part, torch.float32)
        held += piece.nbytes
        if few is not None and isinstance(piece, torch.Tensor):
            expanded.add(part.module.rpartition(".")[2])
    assert expanded == {"o_proj", "down_proj"}
    assert held == weight_bytes(shard.spec, 4)


def test_progress_ends_with_all_packed_bytes(checkpoint: Path) -> None:
    told: list[tuple[int, int]] = []
    kernels = choose_attention("reference")
    load_model(
        str(checkpoint),
        dtype=torch.float32,
        device=torch.device("cpu"),
        kernels=kernels,
        on_progress=lambda done, total: told.append((done, total)),
    )
    stored = sum(tensor.nbytes for tensor in load_file(checkpoint / "model.safetensors").values())
    assert told[-1] == (stored, stored)
    assert told == sorted(told)
