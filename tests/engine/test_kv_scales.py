"""Scales of 8-bit keys and values that come with a checkpoint: which are read, and what an engine makes of them.

The oracle is transformers, over a cache that gives keys and values back as 8 bits leave them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from engine_harness import GREEDY, Answered, Harness
from octavo_engine.errors import CheckpointInvalid, ModelUnsupported
from octavo_engine.kernels import pointwise
from octavo_engine.kernels.attention import UNSCALED
from octavo_engine.kernels.choice import choose_attention
from octavo_engine.kernels.stored import EIGHT_BITS
from octavo_engine.model.compute.decoder import Decoder
from octavo_engine.model.compute.layers import PlainLayers, choose_layers
from octavo_engine.model.loading import load_model
from scaled_checkpoints import SCALES, SCHEME, SPELLINGS, add_to, save_scaled, tensors
from tiny_models import make_model, save_model

pytestmark = pytest.mark.engine
CLOSE = 1e-4  # to logits of a few units; what rounding does to them is far more


def load(place: Path) -> Decoder:
    return load_model(
        str(place),
        dtype=torch.float32,
        device=torch.device("cpu"),
        kernels=choose_attention("reference"),
        loop="python",
    )


def layers_of(decoder: Decoder) -> PlainLayers:
    assert isinstance(decoder.layers, PlainLayers)
    return decoder.layers


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("llama")


@pytest.fixture(scope="module")
def scaled(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return load(save_scaled(model, tmp_path_factory.mktemp("scaled")))


@pytest.fixture
def place(model: Any, tmp_path: Path) -> Path:
    return save_model(model, tmp_path)


class RoundedCache(transformers.DynamicCache):
    """Gives back what 8 bits keep of keys and values."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self._kind = kind

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kw: Any
    ) -> Any:
        scales = SCALES[layer_idx]
        keys, values = self._rounded(key_states, scales.key), self._rounded(value_states, scales.value)
        return super().update(keys, values, layer_idx, *args, **kw)

    def _rounded(self, numbers: torch.Tensor, scale: float) -> torch.Tensor:
        most = torch.finfo(self._kind).max
        return (numbers / scale).clamp(-most, most).to(self._kind).float() * scale


@torch.no_grad()
def oracle(model: Any, answer: Answered, kind: torch.dtype) -> torch.Tensor:
    """The logits that each token of the answer was drawn from, float32 `[tokens, vocab]`."""
    tokens = torch.tensor([answer.request.tokens[:-1]])
    logits = model(tokens, use_cache=True, cache=RoundedCache(kind)).logits[0]
    return logits[answer.request.num_prompt - 1 :].float()  # type: ignore[no-any-return]


def worst(model: Any, decoder: Decoder, kind: torch.dtype, **options: Any) -> float:
    """How far an engine's logits are at most from the oracle's. Prompts come in chunks beside decodes."""
    source = torch.Generator().manual_seed(5)
    prompts = [torch.randint(3, 199, (length,), generator=source).tolist() for length in (1, 17, 40)]
    answers = Harness(decoder, cached=kind, budget=24, **options).together(prompts, replace(GREEDY, max_tokens=8))
    return max((torch.stack(answer.logits) - oracle(model, answer, kind)).abs().max().item() for answer in answers)


@pytest.mark.parametrize("kind", EIGHT_BITS, ids=str)
def test_logits_are_transformers_with_keys_and_values_in_8_bits(kind: torch.dtype, model: Any, scaled: Decoder) -> None:
    assert worst(model, scaled, kind) < CLOSE
    layers = layers_of(scaled)
    plain = [replace(layer, cache_scales=UNSCALED) for layer in layers.layers]
    assert worst(model, replace(scaled, layers=replace(layers, layers=plain)), kind) > 100 * CLOSE


def test_layers_whose_norms_add_read_and_write_with_the_same_scales(model: Any, scaled: Decoder) -> None:
    layers = layers_of(scaled)
    summing = replace(pointwise.PLAIN, add_rms_norm=pointwise.add_rms_norm)
    chosen = choose_layers(layers.layers, layers.shape, replace(layers.kernels, pointwise=summing))
    assert worst(model, replace(scaled, layers=chosen), torch.float8_e4m3fn) < CLOSE


def test_another_cache_keeps_numbers_as_they_are(scaled: Decoder, place: Path) -> None:
    prompts = [[5, 6, 7], list(range(3, 60))]
    found, wanted = (Harness(decoder).together(prompts) for decoder in (scaled, load(place)))
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(torch.stack(ours.logits), torch.stack(theirs.logits))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_tools_names_are_known(spelling: str, place: Path) -> None:
    decoder = load(add_to(place, tensors(spelling), kv_cache_scheme=SCHEME))
    assert decoder.spec.kv_scales
    assert decoder.spec.quantization is None
    found = [layer.cache_scales for layer in layers_of(decoder).layers]
    assert [scale for pair in found for scale in pair] == pytest.approx([scale for pair in SCALES for scale in pair])


BAD = "model.layers.1.self_attn.v_scale"


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (None, CheckpointInvalid, f"tensor {BAD} is missing"),
        (torch.ones(2), ModelUnsupported, rf"tensor {BAD} has the shape \[2\].*heads or channels are not supported"),
        (torch.tensor(0.0), CheckpointInvalid, f"tensor {BAD} is 0.0; .* must be above 0"),
        (torch.tensor(-1.0), CheckpointInvalid, f"tensor {BAD} is -1.0"),
        (torch.tensor(torch.nan), CheckpointInvalid, f"tensor {BAD} is nan"),
        (torch.tensor(torch.inf), CheckpointInvalid, f"tensor {BAD} is inf"),
    ],
    ids=str,
)
def test_a_bad_scale_is_named(change: torch.Tensor | None, kind: type[Exception], said: str, place: Path) -> None:
    made = tensors()
    del made[BAD]
    add_to(place, made if change is None else made | {BAD: change}, kv_cache_scheme=SCHEME)
    with pytest.raises(kind, match=said):
        load(place)


def test_scales_that_the_config_does_not_tell_of_have_no_place(place: Path) -> None:
    with pytest.raises(CheckpointInvalid, match=r"[kv]_scale is in the checkpoint, but its config has no place for it"):
        load(add_to(place, tensors()))


def test_two_spellings_at_once_are_not_guessed_about(place: Path) -> None:
    both = tensors() | tensors(SPELLINGS[1])
    with pytest.raises(CheckpointInvalid, match=r"attn.k_scale is in the checkpoint, but its config has no place"):
        load(add_to(place, both, kv_cache_scheme=SCHEME))
